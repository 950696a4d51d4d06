"""A model comes back as it was, or not at all."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import scannable as sc
from scannable.storage import tensor_file
from scannable.storage.model_file import FORMAT, build_model
from scannable.storage.strict_json import seal


def a_model(**options: Any) -> sc.TransformerPSM:
    return sc.TransformerPSM(sc.TransformerPSMConfig(vocab_size=11, width=8, chunk_length=3, heads=2, **options))


@pytest.mark.parametrize("options", [{}, {"tie_weights": True}, {"compress": "projection", "out_size": 5}])
def test_a_model_survives(tmp_path: Path, options: dict[str, Any]) -> None:
    model = a_model(**options).eval()
    sc.save_model(model, tmp_path / "model")
    assert sorted(p.name for p in (tmp_path / "model").iterdir()) == ["config.json", "model.safetensors"]
    loaded = sc.load_model(tmp_path / "model")
    tokens = torch.randint(11, (2, 20))
    assert loaded.config == model.config and torch.equal(loaded(tokens), model(tokens))


def test_a_model_comes_back_in_eval_mode(tmp_path: Path) -> None:
    model = a_model(dropout=0.5).train()
    sc.save_model(model, tmp_path)
    assert model.training
    loaded = sc.load_model(tmp_path)
    assert not any(module.training for module in loaded.modules())
    assert all(p.requires_grad for p in loaded.parameters())


# A model with everything that a constructor may do.


class Span(NamedTuple):
    begin: int
    end: int = 9


@dataclass(frozen=True)
class Part:
    sizes: tuple[int, ...] = (1, 2)
    names: dict[int, str] = field(default_factory=dict)


@sc.configurable
@dataclass(frozen=True)
class Registered:
    x: int = 1


@dataclass(frozen=True)
class OddConfig:
    width: int = 4
    part: Part = field(default_factory=Part)
    by_place: dict[int, Part] = field(default_factory=dict)
    by_pair: dict[tuple[int, int], float] = field(default_factory=dict)
    span: Span | None = None
    where: Path | str = "here"
    either: tuple[int, ...] | list[int] | tuple[str, str] = ()
    way: Literal["north", "south", 3] = "north"
    options: dict[str, Any] = field(default_factory=dict)
    rates: tuple[float, ...] | float = 0.5
    looks: bool = False
    derived: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "derived", self.width + 1)


class Odd(nn.Module):
    table: Tensor

    def __init__(self, config: OddConfig) -> None:
        super().__init__()
        self.config = config
        d = config.width
        self.embedding = nn.Embedding(7, d)
        self.head = nn.Linear(d, 7, bias=False)
        self.head.weight = self.embedding.weight
        self.agg = nn.Linear(d, d)
        self.register_buffer("count", torch.tensor(3))
        self.register_buffer("table", torch.arange(d).sin(), persistent=False)
        self.plain = torch.arange(d).cos()
        self.hidden = [{"deep": torch.full((d,), 2.0)}]
        constant = torch.linspace(0, 1, d)
        self.function = lambda x: x * constant
        if config.looks:
            self.rates = [rate.item() for rate in torch.linspace(0, 1, 3)]

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.agg(self.embedding(tokens)) + self.table + self.plain.to(self.table.dtype)
        return self.head(self.function(x).to(self.table.dtype) + self.hidden[0]["deep"].to(self.table.dtype))


sc.register_model(Odd, OddConfig)
TOKENS = torch.arange(7)[None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("looks", [False, True])
def test_tied_weights_unsaved_buffers_and_plain_tensors_are_right(
    tmp_path: Path, dtype: torch.dtype, looks: bool
) -> None:
    """Also where the constructor looks at values, and so cannot be run without memory."""
    model = Odd(OddConfig(looks=looks)).to(dtype).eval()
    sc.save_model(model, tmp_path)
    loaded = sc.load_model(tmp_path)
    assert loaded.table.dtype == dtype and torch.equal(loaded.table, model.table)
    assert torch.equal(loaded.plain, model.plain) and torch.equal(loaded.hidden[0]["deep"], torch.full((4,), 2.0))
    assert torch.equal(loaded(TOKENS), model(TOKENS))
    stored = load_file(tmp_path / "model.safetensors")
    assert sorted(stored) == ["agg.bias", "agg.weight", "count", "embedding.weight"]
    assert loaded.head.weight is loaded.embedding.weight and isinstance(loaded.head.weight, nn.Parameter)
    assert len(list(loaded.parameters())) == len(list(model.parameters())) == 3


def test_weights_are_tied_as_they_were_not_as_the_class_ties_them(tmp_path: Path) -> None:
    untied = Odd(OddConfig()).eval()
    untied.head.weight = nn.Parameter(untied.head.weight.detach() + 1)
    sc.save_model(untied, tmp_path)
    loaded = sc.load_model(tmp_path)
    assert loaded.head.weight is not loaded.embedding.weight and torch.equal(loaded(TOKENS), untied(TOKENS))

    model: Any = a_model()
    model.inf.transformer.blocks[1] = model.inf.transformer.blocks[0]
    sc.save_model(model, tmp_path)
    blocks = sc.load_model(tmp_path).inf.transformer.blocks
    assert all(a is b for a, b in zip(blocks[0].parameters(), blocks[1].parameters(), strict=True))


@dataclass(frozen=True)
class ViewConfig:
    width: int = 4


class View(nn.Module):
    def __init__(self, config: ViewConfig) -> None:
        super().__init__()
        self.config = config
        self.weight = nn.Parameter(torch.randn(2, config.width))
        self.first = self.weight.detach()[0]


sc.register_model(View, ViewConfig)


def test_a_tensor_that_is_a_view_of_a_weight_stays_one(tmp_path: Path) -> None:
    model = View(ViewConfig())
    sc.save_model(model, tmp_path)
    loaded = sc.load_model(tmp_path)
    assert torch.equal(loaded.first, model.weight[0]) and loaded.first.data_ptr() == loaded.weight.data_ptr()


CONFIGS = [
    OddConfig(part=Part((3,), {5: "five", -1: ""})),
    OddConfig(by_place={0: Part(), 7: Part((), {1: "a"})}, by_pair={(1, 2): 0.5, (3, 4): 1.0}),
    OddConfig(span=Span(4)),
    OddConfig(where=Path("there")),
    OddConfig(where="there"),
    OddConfig(either=(1, 2)),
    OddConfig(either=[1, 2]),
    OddConfig(either=("a", "b")),
    OddConfig(way=3),
    OddConfig(rates=(1.0, 2.5)),
    OddConfig(options={"tuple": (1, (2, [3])), "ints": {1: {2: None}}, "kind": "word", "path": Path("a"), "deep": {"kind": 1}}),
    OddConfig(options={"record": Registered(4), "records": [Registered(5), (Registered(6),)]}),
]  # fmt: skip


@pytest.mark.parametrize("config", CONFIGS, ids=range(len(CONFIGS)))
def test_a_configuration_of_any_types_comes_back_with_them(tmp_path: Path, config: OddConfig) -> None:
    sc.save_model(Odd(config), tmp_path)
    found = sc.load_model(tmp_path).config
    assert found == config and repr(found) == repr(config)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (OddConfig(options={"x": {1, 2}}), r"Odd cannot be saved: the configuration\.options\.x=\{1, 2\} is a set, which"),
        (OddConfig(options={"x": Part()}), r"Odd cannot be saved: .*options\.x cannot be of the kind '.*:Part'"),
        (OddConfig(options={"x": float("inf")}), r"options\.x=inf is not finite"),
        (OddConfig(width=4, way="east"), r"way='east' is unknown"),  # pyright: ignore[reportArgumentType]
        (OddConfig(rates=(1, "a")), r"rates\[1\]='a' is no float"),  # pyright: ignore[reportArgumentType]
    ],
)  # fmt: skip
def test_a_configuration_that_would_not_come_back_is_not_saved(tmp_path: Path, config: OddConfig, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        sc.save_model(Odd(config), tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_compiled_part_or_model_is_saved_under_plain_names(tmp_path: Path) -> None:
    for part in ("agg", None):
        model = a_model().eval()
        plain = {name: value.clone() for name, value in model.state_dict().items()}
        if part is None:
            whole: Any = torch.compile(model)
        else:
            model.layer.agg = torch.compile(model.agg)  # pyright: ignore[reportAttributeAccessIssue]
            whole = model
        assert any("_orig_mod." in name for name in whole.state_dict())
        sc.save_model(whole, tmp_path)
        found = sc.load_model(tmp_path).state_dict()
        assert list(found) == list(plain) and all(torch.equal(found[name], plain[name]) for name in plain)


def test_a_model_that_its_configuration_does_not_describe_is_not_saved(tmp_path: Path) -> None:
    model = a_model()
    model.layer.agg = nn.Linear(8, 8)
    with pytest.raises(
        TypeError, match=r"its configuration builds layer\.agg\..* as .*, but the model has nothing there; register"
    ):
        sc.save_model(model, tmp_path)
    wide = a_model()
    wide.head = nn.Linear(8, 12)
    with pytest.raises(TypeError, match=r"builds head\.weight as \(11, 8\), but the model has \(12, 8\) there"):
        sc.save_model(wide, tmp_path)
    with pytest.raises(TypeError, match=r"Linear cannot be saved: .* known: .*TransformerPSMConfig"):
        sc.save_model(nn.Linear(2, 2), tmp_path)
    with pytest.raises(TypeError, match=r"no model is built from a Part; .*:Part is not registered"):
        build_model(Part())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dtype_and_the_global_generator_are_kept(tmp_path: Path, dtype: torch.dtype) -> None:
    for model in (a_model().to(dtype), Odd(OddConfig()).to(dtype), Odd(OddConfig(looks=True)).to(dtype)):
        sc.save_model(model, tmp_path)
        before = torch.random.get_rng_state()
        loaded = sc.load_model(tmp_path)
        assert torch.equal(before, torch.random.get_rng_state())
        assert all(p.dtype == dtype and p.requires_grad for p in loaded.parameters())


# Damage.


def test_damage_is_named(tmp_path: Path) -> None:
    model, folder = a_model(), tmp_path / "model"
    weights, config = folder / "model.safetensors", folder / "config.json"

    def refused(message: str) -> None:
        with pytest.raises(sc.ModelFileError, match=message):
            sc.load_model(folder)
        if folder.is_dir():
            shutil.rmtree(folder)
        sc.save_model(model, folder)

    refused("holds no model: config.json is missing")
    weights.write_bytes(weights.read_bytes()[:-1])
    refused(r"model\.safetensors cannot be read as a saved model: its tensors take [\d]+ bytes, but [\d]+ are there")
    flipped = bytearray(weights.read_bytes())
    flipped[-5] ^= 1
    weights.write_bytes(flipped)
    refused(r"model\.safetensors cannot be read as a saved model: it is damaged: its checksum does not match")
    for content in (b"", b"{}", b"null", b"[" * 100_000, config.read_bytes()[:-20], config.read_bytes() + b" "):
        config.write_bytes(content)
        refused(r"config\.json is damaged, or was changed by hand")
    config.write_text(config.read_text().replace('"width": 8', '"width": 16'))
    refused(
        r"config\.json is damaged, or was changed by hand, which changes nothing about the model: it is not what was"
    )
    for path in (config, weights):
        path.unlink()
        refused(f"{path.name} is missing")
        path.unlink()
        path.mkdir()
        refused(f"{path.name} is missing")
    weights.write_bytes(b"")
    refused(r"model\.safetensors cannot be read")
    sc.save_state(sc.empty(0), weights)
    refused("of the format 'scannable-state-2', expected 'scannable-model-2'")
    sc.load_model(folder)


def test_a_readable_copy_with_a_true_checksum_is_compared_too(tmp_path: Path) -> None:
    sc.save_model(a_model(), tmp_path)
    description = json.loads((tmp_path / "config.json").read_text())
    del description["sha256"]
    description["config"]["dropout"] = 0.5
    (tmp_path / "config.json").write_bytes(seal(description) + b"\n")
    with pytest.raises(sc.ModelFileError, match=r"config\.json has another configuration than model\.safetensors"):
        sc.load_model(tmp_path)
    (tmp_path / "config.json").write_bytes(seal({"files": {}}) + b"\n")
    with pytest.warns(UserWarning, match="is of another save"):
        sc.load_model(tmp_path)


def crafted(folder: Path, plain: Any, *, tied: Any = None, buffers: Any = None) -> None:
    """A folder whose every checksum is true, with another configuration."""
    _, tensors = tensor_file.read_sealed(folder / "model.safetensors", FORMAT)
    about = json.dumps({"config": plain, "tied": tied or {}, "buffers": buffers or {}})
    written = tensor_file.write_sealed(folder / "model.safetensors", tensors, {"format": FORMAT, "about": about})
    (folder / "config.json").write_bytes(seal({"format": FORMAT, "config": plain, "weights": written}) + b"\n")


KIND = "scannable.models.transformer_psm_config:TransformerPSMConfig"


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("widht", 8, "has no field 'widht'; did you mean 'width'"),
        ("width", 16, "size mismatch"),
        ("width", 2**40, "do not make a model of a TransformerPSMConfig"),
        ("chunk_length", 2**62, "do not make a model of a TransformerPSMConfig"),
        ("chunk_length", 10**30, "chunk_length=10+ is out of the range of 64 bits"),
        ("agg_causal", "false", "agg_causal='false' is no bool"),
        ("dropout", "0", "dropout='0' is no float"),
        ("dropout", 2, "dropout=2.0 must lie in"),
        ("kind", "Nonesuch", "cannot be of the kind 'Nonesuch'; known: .*TransformerPSMConfig"),
        ("kind", [], r"cannot be of the kind \[\]"),
        ("kind", "os:system", "cannot be of the kind 'os:system'"),
        ("kind", "../../evil:Config", "cannot be of the kind"),
        ("kind", "__main__:Config", "defined in a script or notebook: run its definition first, or move it to a module"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("shapes_unchecked")
def test_a_configuration_with_a_true_checksum_is_still_not_believed(
    tmp_path: Path, field: str, value: object, message: str
) -> None:
    """Nor is memory taken for it: 2^40 columns would not fit."""
    sc.save_model(a_model(), tmp_path)
    plain = json.loads((tmp_path / "config.json").read_text())["config"]
    assert plain["kind"] == KIND
    crafted(tmp_path, {**plain, field: value})
    with pytest.raises(sc.ModelFileError, match=message):
        sc.load_model(tmp_path)


@pytest.mark.parametrize(
    ("tied", "buffers"),
    [({"x": "nonesuch"}, {}), ({"x": []}, {}), ([1], {}), ({}, {"table": "float33"}), ({}, {"table": "load"}), ({}, 5)],
)
def test_what_else_is_said_about_the_weights_is_not_believed_either(tmp_path: Path, tied: Any, buffers: Any) -> None:
    sc.save_model(Odd(OddConfig()), tmp_path)
    crafted(tmp_path, json.loads((tmp_path / "config.json").read_text())["config"], tied=tied, buffers=buffers)
    with pytest.raises(sc.ModelFileError):
        sc.load_model(tmp_path)


@dataclass(frozen=True)
class EchoConfig:
    width: int = 4


class Echo(nn.Module):
    """Two of its weights are one, which looks at values when it is made."""

    def __init__(self, config: EchoConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(7, config.width)
        self.head = nn.Linear(config.width, 7, bias=False)
        self.head.weight = self.embedding.weight
        self.rates = [rate.item() for rate in torch.linspace(0, 1, 3)]


sc.register_model(Echo, EchoConfig)


def test_a_model_of_tied_weights_alone_that_looks_at_values_is_loaded(tmp_path: Path) -> None:
    model = Echo(EchoConfig())
    sc.save_model(model, tmp_path)
    loaded = sc.load_model(tmp_path)
    assert loaded.head.weight is loaded.embedding.weight
    assert torch.equal(loaded.head.weight, model.head.weight)


@pytest.mark.parametrize("width", [4000, 2**33, 2**40])
def test_a_model_that_looks_at_values_is_not_given_much_memory_either(tmp_path: Path, width: int) -> None:
    sc.save_model(Odd(OddConfig(looks=True)), tmp_path)
    plain = json.loads((tmp_path / "config.json").read_text())["config"]
    crafted(tmp_path, {**plain, "width": width}, tied={"head.weight": "embedding.weight"})
    with pytest.raises(sc.ModelFileError, match=r"more than twice the \d+ numbers of the file|memory|overflow"):
        sc.load_model(tmp_path)


# A kill at any moment leaves the old model or the new one.


def weights_of(value: float, width: int) -> Odd:
    model = Odd(OddConfig(width=width))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)
    return model


@pytest.mark.parametrize("operation", ["replace", "fsync", "mkstemp", "chmod"])
def test_a_crash_before_or_after_any_file_operation_leaves_one_whole_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    class Crash(BaseException):
        pass

    owner: Any = {"fsync": os, "mkstemp": tempfile}.get(operation, Path)
    real = getattr(owner, operation)
    seen: set[float] = set()
    for crash_at in range(6):
        for after in (False, True):
            folder = tmp_path / f"{crash_at}{after}"
            sc.save_model(weights_of(1.0, 4), folder)
            calls = iter(range(100))

            def crashing(*args: Any, at: int = crash_at, later: bool = after, calls: Any = calls, **kwargs: Any) -> Any:
                now = next(calls) == at
                if now and not later:
                    raise Crash
                result = real(*args, **kwargs)
                if now:
                    raise Crash
                return result

            monkeypatch.setattr(owner, operation, crashing)
            with suppress(Crash):
                sc.save_model(weights_of(2.0, 5), folder)
            monkeypatch.setattr(owner, operation, real)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                loaded = sc.load_model(folder)
            value = float(loaded.agg.bias.detach()[0])
            assert (value, loaded.config.width) in {(1.0, 4), (2.0, 5)}
            assert all(bool((p == value).all()) for p in loaded.parameters())
            seen.add(value)
    assert 2.0 in seen


KILL = """
import os, random, signal, sys, time, warnings
import torch
import scannable as sc

warnings.simplefilter("ignore")
torch.set_num_threads(1)
os.fsync = lambda handle: None  # a kill, unlike a power cut, loses nothing that was written
folder, found = sys.argv[1], set()
models = []
for width in (8, 16):
    model = sc.TransformerPSM(sc.TransformerPSMConfig(vocab_size=11, width=width, chunk_length=3, heads=2))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(width)
    models.append(model)
sc.save_model(models[0], folder)
start = time.monotonic()
for model in models * 3:
    sc.save_model(model, folder)
both = (time.monotonic() - start) / 3
chance = random.Random(0)
for _ in range(40):
    child = os.fork()
    while child == 0:
        for model in models:
            sc.save_model(model, folder)
    time.sleep(2 * both * chance.random())
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    loaded = sc.load_model(folder)
    assert all(bool((parameter == loaded.config.width).all()) for parameter in loaded.parameters())
    found.add(loaded.config.width)
print(sorted(found))
"""


@pytest.mark.slow
def test_a_killed_process_leaves_one_whole_model(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILL, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[8, 16]", done.stderr


def test_after_an_interrupted_save_the_readable_copy_is_told_from_the_truth(tmp_path: Path) -> None:
    sc.save_model(weights_of(1.0, 4), tmp_path)
    old = (tmp_path / "config.json").read_bytes()
    sc.save_model(weights_of(2.0, 5), tmp_path)
    (tmp_path / "config.json").write_bytes(old)
    with pytest.warns(UserWarning, match=r"config\.json is of another save than model\.safetensors"):
        assert sc.load_model(tmp_path).config.width == 5
    sc.save_model(weights_of(3.0, 6), tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["config"]["width"] == 6
