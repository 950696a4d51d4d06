"""Layers of a stack are words of a command line, with their options."""

import json
from pathlib import Path
from typing import Any

import pytest

import scannable as sc
from scannable.cli.commands.train import parsed
from scannable.cli.layer_argument import layer_of, word_of
from scannable.models.layer_options import OPTIONS, LogLinearAttentionOptions, Mamba2Options, MambaOptions
from scannable.storage.configuration import from_plain, to_plain


def model_of(*words: str) -> sc.LMConfig:
    return parsed("stdlib-mamba", [*(["--model.layers", *words] if words else []), "--steps", "3"]).recipe.model


def test_layers_are_named_one_for_each_block() -> None:
    assert model_of().layers == ("mamba",) * 9
    assert model_of("mamba", "gla", "log_linear").layers == ("mamba", "gla", "log_linear")


def test_a_layer_may_have_options_behind_its_name() -> None:
    assert model_of(
        "mamba:state_size=32:with_mlp=True", "gla", "mamba2:step_size_limits=(0.1,None):heads=2"
    ).layers == (
        MambaOptions(state_size=32, with_mlp=True),
        "gla",
        Mamba2Options(step_size_limits=(0.1, None), heads=2),
    )


@pytest.mark.parametrize("name", OPTIONS)
def test_the_word_of_a_layer_stands_for_it(name: str) -> None:
    assert layer_of(word_of(name)) == name
    # With nothing changed it is the bare name.
    assert word_of(OPTIONS[name]()) == name
    assert layer_of(word_of(OPTIONS[name](heads=3, with_mlp=False))) == OPTIONS[name](heads=3, with_mlp=False)


def test_words_hold_every_kind_of_option() -> None:
    for layer in (
        Mamba2Options(step_size_limits=(0.25, 3.0), eps=1e-3, bias=True, expand=1),
        LogLinearAttentionOptions(chunk=8, levels=3),
    ):
        assert layer_of(word_of(layer)) == layer


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("mamab", "layers[0]='mamab' is none of linear_attention, deltanet"),
        ("mmba:state_size=3", "there is no layer 'mmba'; did you mean 'mamba'?"),
        ("mamba:state_siz=3", "mamba has no option 'state_siz'; did you mean 'state_size'?"),
        ("mamba:state_size=many", "state_size='many' is no int"),
        ("mamba:state_size=2.5", "state_size=2.5 is no int"),
        ("mamba:heads=0", "heads=0 must be a whole number of at least 1"),
        ("mamba:3", "'3' is no option of a layer; write mamba:heads=2, for example"),
    ],
)
def test_a_wrong_layer_is_named(word: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        model_of(word)
    said = "".join(capsys.readouterr())
    assert ended.value.code == 2 and message in " ".join(said.replace("│", " ").split())


# The same in files.

OF_MAMBA = {"kind": "scannable.models.layer_options:MambaOptions"}


@pytest.mark.parametrize("name", OPTIONS)
def test_every_layer_and_its_options_survive_json(name: str, tmp_path: Path) -> None:
    config = sc.LMConfig(5, (name, OPTIONS[name](), OPTIONS[name](heads=1, with_mlp=True)), width=8, heads=2)
    assert from_plain(json.loads(json.dumps(to_plain(config)))) == config
    sc.save_model(sc.LM(config), tmp_path)
    assert sc.load_model(tmp_path).config == config


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (["mamab"], r"layers\[0\]='mamab' is none of linear_attention"),
        ([], r"layers=\(\) must be a tuple of at least one layer"),
        ("gla", r"\.layers='gla' is no tuple"),
        ([3], r"\.layers\[0\]=3 is no str \| .*LayerOptions"),
        ([["gla"]], r"\.layers\[0\]=\['gla'\] is no str"),
        ([{**OF_MAMBA, "state_siz": 3}], r"\.layers\[0\] has no field 'state_siz'; did you mean 'state_size'\?"),
        ([{**OF_MAMBA, "state_size": "x"}], r"\.layers\[0\]\.state_size='x' is no int"),
        ([{**OF_MAMBA, "heads": 0}], r"\.layers\[0\]: heads=0 must be a whole number"),
        ([{"kind": OF_MAMBA["kind"].replace("Mamba", "Mamb")}], r"did you mean '.*:MambaOptions'\?"),
        ([{"kind": OF_MAMBA["kind"].replace("Mamba", "Layer")}], "LayerOptions are those of no layer; choose among"),
        ([{"kind": "scannable.tasks.groups:GroupTask"}], r"\.layers\[0\] cannot be of the kind '.*GroupTask'"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(layers: Any, message: str) -> None:
    plain = {**to_plain(sc.LMConfig(5)), "layers": layers}
    with pytest.raises(ValueError, match=message):
        from_plain(plain)
