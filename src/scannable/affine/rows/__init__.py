"""The rows of Table 1 in its order, then those that the paper's text and appendix name."""

from scannable.affine.layer import ZooLayer
from scannable.affine.rows.deltanet import DeltaNet
from scannable.affine.rows.gated_deltanet import GatedDeltaNet
from scannable.affine.rows.gated_rfa import GatedRFA
from scannable.affine.rows.gated_rnn import GatedRNN
from scannable.affine.rows.gla import GLA
from scannable.affine.rows.linear_attention import LinearAttention
from scannable.affine.rows.log_linear import LogLinearAttention
from scannable.affine.rows.lstm import LSTM
from scannable.affine.rows.lti import DenseLTI
from scannable.affine.rows.mamba import Mamba
from scannable.affine.rows.mamba2 import Mamba2
from scannable.affine.rows.mlstm import MLSTM
from scannable.affine.rows.retnet import RetNet
from scannable.affine.rows.rwkv7 import RWKV7
from scannable.affine.rows.s4 import S4
from scannable.affine.rows.s6 import S6

ROWS: dict[str, type[ZooLayer]] = {
    "linear_attention": LinearAttention,
    "deltanet": DeltaNet,
    "gated_deltanet": GatedDeltaNet,
    "retnet": RetNet,
    "mlstm": MLSTM,
    "gated_rfa": GatedRFA,
    "s4": S4,
    "s6": S6,
    "mamba": Mamba,
    "gla": GLA,
    "lti": DenseLTI,
    "mamba2": Mamba2,
    "rwkv7": RWKV7,
    "gated_rnn": GatedRNN,
    "log_linear": LogLinearAttention,
    "lstm": LSTM,
}
