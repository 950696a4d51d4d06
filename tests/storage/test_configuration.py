"""A configuration is read back as it was written, or refused with its reason."""

import contextlib
import copy
import json
import random
import resource
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, Optional, TypeVar

import pytest

import scannable as sc
from scannable.models.layer_options import MambaOptions, S4Options
from scannable.models.lm_config import LMConfig
from scannable.recipes import RECIPES, recipe_named
from scannable.storage.configuration import ConfigurationError, from_plain, to_plain
from scannable.storage.model_file import build_model
from scannable.storage.registry import name_of
from scannable.tasks import GroupTask
from scannable.tasks.text import TextTask
from scannable.training.limits import check_batch_memory, check_memory
from scannable.training.loop import Run
from scannable.training.recipe import Curriculum, Evaluation, Optimizer, Recipe
from scannable.training.run_folder import TrainingError, load_recipe


@dataclass(frozen=True)
class Inner:
    size: int = 1


@dataclass(frozen=True)
class Outer:
    """A field of every type that configurations have."""

    number: float
    inner: Inner = field(default_factory=Inner)
    perhaps: Inner | None = None
    many: tuple[Inner, ...] = ()
    pair: tuple[float, float] = (0.0, 0.0)
    names: list[str] = field(default_factory=list)
    way: Literal["north", "south"] = "north"
    level: Literal[1, 2] = 1
    place: Path | None = None
    on: bool = False
    free: dict[str, Any] = field(default_factory=dict)
    anything: Any = None


OUTER, INNER, GROUP, RECIPE = (name_of(kind) for kind in (Outer, Inner, GroupTask, Recipe))
OPTIMIZER, EVALUATION, TEXT = (name_of(kind) for kind in (Optimizer, Evaluation, TextTask))
SCAN_STATE = name_of(sc.ScanState)


T = TypeVar("T")


class Span(NamedTuple):
    begin: int
    end: float = 1.0


@dataclass(frozen=True)
class Holder(Generic[T]):
    content: T


@dataclass(frozen=True)
class Wide:
    """Fields whose JSON alone does not say what they were."""

    spans: tuple[Span, ...] = ()
    holder: Holder[int] | None = None
    ints: dict[int, str] = field(default_factory=dict)
    pairs: Mapping[tuple[int, int], Inner] = field(default_factory=dict)
    numbers: Sequence[float] = ()
    either: int | float | str | None = None
    records: tuple[Inner, int] | tuple[Inner, ...] | list[Inner] = ()
    lists: list[tuple[int, ...]] | tuple[list[int], ...] = ()
    nested: dict[str, tuple[dict[int, Inner | None], ...]] = field(default_factory=dict)
    text_or_place: str | Path = ""
    perhaps: Optional[tuple[Literal["a"], ...]] = None  # noqa: UP045
    bare: tuple = ()  # pyright: ignore[reportMissingTypeArgument]
    anything: Any = None
    doubled: int = field(init=False, default=2)


WIDE = [
    Wide(spans=(Span(1), Span(2, 0.5))),
    Wide(holder=Holder(3)),
    Wide(ints={1: "a", -5: "b", 0: ""}),
    Wide(pairs={(1, 2): Inner(3)}),
    Wide(numbers=(1.0, 2.0)),
    Wide(numbers=[1.0, 2.0]),
    Wide(either=1),
    Wide(either=1.0),
    Wide(either="1"),
    Wide(records=(Inner(1), Inner(2))),
    Wide(records=(Inner(1), 2)),
    Wide(records=[Inner(1), Inner(2)]),
    Wide(lists=[(1, 2), ()]),
    Wide(lists=([1, 2], [])),
    Wide(lists=()),
    Wide(nested={"kind": ({1: None, 2: Inner(9)}, {}), "items": ()}),
    Wide(text_or_place="a"),
    Wide(text_or_place=Path("a")),
    Wide(perhaps=("a", "a")),
    Wide(perhaps=()),
    Wide(bare=(1, ("a", [2]))),
    Wide(anything=((), [], {}, {1: 2}, {"kind": "tuple", "items": [1]}, {None: 0.5, True: 1, "x": Path("y")})),
]


@pytest.mark.parametrize("value", WIDE, ids=range(len(WIDE)))
def test_what_json_has_no_form_for_survives_it(value: Wide) -> None:
    found = from_plain(json.loads(json.dumps(to_plain(value), allow_nan=False)), Wide)
    assert found == value and repr(found) == repr(value)


def test_a_tuple_and_a_path_are_written_plainly_where_their_type_is_known() -> None:
    plain = to_plain(Outer(1.5, pair=(0.5, 1.0), place=Path("here")))
    assert plain["pair"] == [0.5, 1.0] and plain["place"] == "here"
    assert to_plain(Wide(ints={3: "x"}))["ints"] == {"kind": "dict", "items": [[3, "x"]]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ints": {"3": "x"}}, r"\.ints='3' is no int"),
        ({"ints": {"kind": "dict", "items": [[3, 4]]}}, r"\.ints\[3\]=4 is no str"),
        ({"ints": {"kind": "dict", "items": [[3, "x"], [3, "y"]]}}, r"\.ints=.* is no dict"),
        ({"ints": {"kind": "dict", "items": [[[3], "x"]]}}, r"\.ints=.* is no dict"),
        ({"ints": {"kind": "dict", "items": 5}}, r"\.ints=5 is no dict"),
        ({"bare": {"kind": "tuple", "items": 5}}, r"\.bare=5 is no tuple"),
        ({"anything": {"kind": "path", "items": 5}}, r"\.anything=5 is no path"),
        ({"anything": {"kind": "tensor", "items": "t0"}}, r"\.anything='t0' is no tensor, or none can be here"),
        ({"anything": {"kind": "number", "items": "inf"}}, r"\.anything='inf' is no number, or none can be here"),
        ({"spans": [{"kind": name_of(Span)}]}, r"\.spans\[0\] lacks the field 'begin' of a Span"),
        ({"spans": [{"kind": name_of(Span), "begin": 0.5}]}, r"\.spans\[0\]\.begin=0\.5 is no int"),
        ({"spans": [[1, 2]]}, r"\.spans\[0\]=\[1, 2\] is no Span"),
        ({"either": [1]}, r"\.either=\[1\] is no int \| float \| str \| None"),
        ({"lists": [["a"]]}, r"\.lists\[0\]\[0\]='a' is no int"),
        ({"doubled": 3}, r"has no field 'doubled'"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_odd_types_is_named_too(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        from_plain({"kind": name_of(Wide), **changes}, Wide)


def test_numbers_of_64_bits_are_kept_and_no_others() -> None:
    for whole in (-(2**63), 2**63 - 1):
        assert from_plain(to_plain(Outer(1.0, free={"a": whole})), Outer).free == {"a": whole}
    for beyond in (-(2**63) - 1, 2**63):
        with pytest.raises(ConfigurationError, match="out of the range of 64 bits"):
            to_plain(Outer(1.0, free={"a": beyond}))


@dataclass(frozen=True)
class WithKind:
    kind: str = "x"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (Outer(float("nan")), r"the configuration\.number=nan is not finite"),
        (Outer(1.0, free={"a": {1}}), r"the configuration\.free\.a=\{1\} is a set, which no file can keep"),
        (Outer(1.0, free={"a": 2**70}), r"free\.a=\d+ is out of the range of 64 bits"),
        (WithKind(), r"has a field 'kind', under which files keep its class"),
    ],
)
def test_what_could_not_be_read_back_is_not_written(value: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        to_plain(value)
    with pytest.raises(ConfigurationError, match="nested too deeply"):
        to_plain(Outer(1.0, anything=nested(30, 1, lambda x: [x])))


def test_a_known_class_stands_in_a_place_for_the_class_it_derives_from() -> None:
    @dataclass(frozen=True)
    class Place:
        task: GroupTask

    assert from_plain({"kind": name_of(Special), "group": "Z7"}, GroupTask) == Special("Z7")
    assert from_plain(to_plain(Place(Special("Z3"))), Place) == Place(Special("Z3"))
    with pytest.raises(ConfigurationError, match=r"cannot be of the kind '.*:Optimizer'"):
        from_plain({"kind": OPTIMIZER}, GroupTask)


@sc.configurable
@dataclass(frozen=True)
class Special(GroupTask):
    """Another task of the same fields."""


def outer(**changes: Any) -> Any:
    return from_plain({"kind": OUTER, "number": 1.5, **changes}, Outer)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_survives_json(name: str) -> None:
    recipe = recipe_named(name)
    assert from_plain(json.loads(json.dumps(to_plain(recipe))), Recipe) == recipe


def test_every_type_of_field_survives_json(tmp_path: Path) -> None:
    value = Outer(
        1e-300, Inner(2), Inner(-3), (Inner(4), Inner(5)), (0.1, 2.0), ["ä", ""], "south", 2, tmp_path, True,
        {"kind": 1, "deep": [{"a": None}]}, Inner(6),
    )  # fmt: skip
    plain = json.loads(json.dumps(to_plain(value)))
    # Where anything may stand, only what is known by its name is made into a record again.
    plain["anything"] = to_plain(GroupTask("Z7"))
    assert from_plain(plain, Outer) == replace(value, anything=GroupTask("Z7"))
    text = Recipe(sc.TransformerPSMConfig(257), TextTask(cache=tmp_path), steps=3)
    stack = Recipe(LMConfig(5, ("mamba", MambaOptions(state_size=3, with_mlp=True), "gla")), GroupTask("Z5"))
    for recipe in (text, stack):
        assert from_plain(json.loads(json.dumps(to_plain(recipe))), Recipe) == recipe


def test_what_is_left_out_has_its_default() -> None:
    assert outer() == Outer(1.5)
    assert from_plain({"kind": GROUP}) == GroupTask()


def test_whole_numbers_do_for_floats_and_lists_for_tuples() -> None:
    found = outer(number=1, pair=[0, 1], many=[{"kind": INNER}], names=("a",))
    assert type(found.number) is float and found.pair == (0.0, 1.0) and type(found.pair[1]) is float
    assert found.many == (Inner(),) and found.names == ["a"]


def test_none_stands_only_where_it_may() -> None:
    assert outer(perhaps=None, place=None).perhaps is None
    with pytest.raises(ConfigurationError, match=r"the configuration\.inner=None is no Inner"):
        outer(inner=None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"number": "1.5"}, r"the configuration\.number='1\.5' is no float"),
        ({"number": True}, r"number=True is no float"),
        ({"number": float("nan")}, r"number=nan is not finite"),
        ({"number": 10**400}, r"number=1000+ is not finite"),
        ({"number": 10**5000}, r"number=\(int too long to show\) is not finite"),
        ({"inner": {"kind": INNER, "size": True}}, r"the configuration\.inner\.size=True is no int"),
        ({"inner": {"kind": INNER, "size": 1.0}}, r"inner\.size=1\.0 is no int"),
        ({"inner": {"kind": INNER, "size": 2**63}}, r"size=9223372036854775808 is out of the range of 64 bits"),
        ({"inner": {"kind": INNER, "sice": 1}}, r"\.inner has no field 'sice'; did you mean 'size'\? known: size"),
        ({"inner": {"kind": "Iner"}}, r"\.inner cannot be of the kind 'Iner'; did you mean '.*:Inner'\? known: .*:Inner$"),
        ({"inner": {"kind": OUTER}}, r"\.inner cannot be of the kind '.*:Outer'"),
        ({"inner": {"kind": GROUP}}, r"\.inner cannot be of the kind '.*:GroupTask'; known: .*:Inner$"),
        ({"inner": {"kind": 5}}, r"\.inner cannot be of the kind 5; known: .*:Inner$"),
        ({"inner": {"size": 1}}, r"\.inner=\{'size': 1\} is no Inner"),
        ({"perhaps": {"kind": "Iner"}}, r"\.perhaps cannot be of the kind 'Iner'; did you mean '.*:Inner'"),
        ({"many": [{"kind": INNER}, {"kind": INNER, "size": ""}]}, r"\.many\[1\]\.size='' is no int"),
        ({"many": {"kind": INNER}}, r"\.many=\{'kind': '.*Inner'\} is no tuple"),
        ({"pair": [1.0]}, r"\.pair=\[1\.0\] is no tuple\[float, float\]"),
        ({"names": "abc"}, r"\.names='abc' is no list\[str\]"),
        ({"names": [1]}, r"\.names\[0\]=1 is no str"),
        ({"way": "nroth"}, r"\.way='nroth' is unknown; did you mean 'north'\? known: north, south"),
        ({"way": ["north"]}, r"\.way=\['north'\] is unknown; known: north, south"),
        ({"level": True}, r"\.level=True is unknown; known: 1, 2"),
        ({"level": 1.0}, r"\.level=1\.0 is unknown"),
        ({"place": 5}, r"\.place=5 is no pathlib\.Path \| None"),
        ({"on": 1}, r"\.on=1 is no bool"),
        ({"free": []}, r"\.free=\[\] is no dict\[str, Any\]"),
        ({"anything": object()}, r"\.anything=<object .*> is nothing that JSON can hold"),
        ({"free": {"a": [1, {2: 3}]}}, r"\.free\.a\[1\]=\{2: 3\} is nothing that JSON can hold"),
        ({"free": {"a": float("inf")}}, r"\.free\.a=inf is not finite"),
        ({"anything": {"kind": "GruopTask"}}, r"\.anything cannot be of the kind 'GruopTask'; did you mean 'scannable.tasks.groups:GroupTask'"),
        ({"nubmer": 1}, r"the configuration has no field 'nubmer'; did you mean 'number'"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_place(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        outer(**changes)


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        ({"kind": OUTER}, "here lacks the field 'number' of a Outer"),
        ({}, r"here=\{\} is no Outer"),
        ([], r"here=\[\] is no Outer"),
        (None, "here=None is no Outer"),
        ("Outer", "here='Outer' is no Outer"),
        ({"kind": "Outr"}, "here cannot be of the kind 'Outr'; did you mean '.*:Outer'"),
    ],
)
def test_what_is_no_configuration_at_all_is_refused(plain: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        from_plain(plain, Outer, "here")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("model", "width"), "wide", r"the configuration\.model\.width='wide' is no int"),
        (("model", "width"), True, r"width=True is no int"),
        (("model", "width"), 0, r"the configuration\.model: width=0 must be a whole number of at least 1"),
        (("model", "widht"), 3, r"model has no field 'widht'; did you mean 'width'"),
        (("model", "kind"), "TransformerPSMConfg", r"TransformerPSMConfg'; did you mean '.*:TransformerPSMConfig'"),
        (("model",), 5, r"the configuration: model=5 is no configuration of a model"),
        (("model",), {"kind": GROUP}, r"model=GroupTask\(.*\) is no configuration of a model that is known"),
        (("task",), {"kind": OPTIMIZER}, r"the configuration: task=Optimizer\(.* is no task"),
        (("task", "group"), "S77", r"the configuration\.task: group='S77' has more than 2,048 elements"),
        (("task", "seed"), -1, r"the configuration\.task: seed=-1 must be"),
        (("optimizer", "schedule"), "cosin", r"schedule='cosin' is unknown; did you mean 'cosine'"),
        (("optimizer", "schedule"), {"kind": GROUP}, r"optimizer\.schedule=\{.* is unknown"),
        (("optimizer", "learning_rate"), -1, r"optimizer: learning_rate=-1.0 must be above 0"),
        (("optimizer", "kind"), EVALUATION, r"optimizer cannot be of the kind '.*:Evaluation'; known: .*:Optimizer"),
        (("curriculum", "lengths"), 4, r"lengths=4 is no"),
        (("curriculum", "lengths"), [], r"curriculum: lengths is empty"),
        (("curriculum", "lengths"), ["a"], r"lengths\[0\]='a' is no int"),
        (("curriculum", "below"), [float("inf")], r"curriculum\.below\[0\]=inf is not finite"),
        (("steps",), 1.5, r"steps=1.5 is no int"),
        (("steps",), 10**30, r"steps=10+ is out of the range of 64 bits"),
        (("steps",), {"kind": GROUP}, r"steps=\{'kind': '.*:GroupTask'\} is no int"),
    ],
)
def test_what_is_wrong_in_a_recipe_is_named(path: tuple[str, ...], value: Any, message: str) -> None:
    plain = to_plain(recipe_named("demo"))
    inner = plain
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    with pytest.raises(ConfigurationError, match=message):
        from_plain(plain, Recipe)


def nested(depth: int, inner: Any, wrap: Any) -> Any:
    for _ in range(depth):
        inner = wrap(inner)
    return inner


DEEP = [
    nested(100_000, 1, lambda x: [x]),
    nested(100_000, 1, lambda x: {"a": x}),
    nested(100_000, {"kind": GROUP}, lambda x: {"kind": RECIPE, "model": x}),
    nested(300, {"kind": GROUP}, lambda x: {"kind": RECIPE, "model": x, "task": {"kind": GROUP}}),
]


@pytest.mark.parametrize("deep", DEEP, ids=["lists", "dicts", "records", "fewer records"])
def test_what_is_nested_too_deeply_is_refused(deep: Any) -> None:
    plain = to_plain(recipe_named("demo"))
    for inner, name in (
        (plain, "model"),
        (plain, "steps"),
        (plain, "kind"),
        (plain["model"], "kind"),
        (plain["curriculum"], "lengths"),
        (plain["optimizer"], "schedule"),
    ):
        before, inner[name] = inner[name], deep
        with pytest.raises(ConfigurationError):
            from_plain(plain, Recipe)
        inner[name] = before
    assert from_plain(plain, Recipe) == recipe_named("demo")


STRANGE: list[Any] = [
    None, True, False, 0, -0.0, -1, 1, 2**31, 2**63, -(2**63) - 1, 10**30, 10**400, -(10**5000), 1.5, 1e308, 5e-324,
    float("nan"), float("inf"), -float("inf"), "", "ä\u0000", "\ud800", "\U0001f40d", "kind", "x" * 10_000, [], [[]], {},
    (), [1, "two", None], [0.5, 0.5], [10**400], [True], {"": ""}, {"kind": None}, {"kind": []}, {"kind": {}},
    {"kind": RECIPE}, {"kind": GROUP, "group": 3}, {"kind": TEXT, "tokenizer": "bpe", "bpe_size": 1},
    {"kind": "\ud800"}, {"kind": "type"}, {"kind": SCAN_STATE}, {1: 2}, {"kind": GROUP, 1: 2}, "S5", "S999999999",
    "Z2x" * 1000, "float32", "mamba", b"bytes", Path("somewhere"), object(), *DEEP,
]  # fmt: skip


def records_of(plain: Any) -> list[dict[str, Any]]:
    inner = [record for value in plain.values() if isinstance(value, dict) for record in records_of(value)]
    return [plain, *inner]


@pytest.mark.slow
def test_thousands_of_random_changes_are_answered_not_crashed_on() -> None:
    choose = random.Random(0)
    originals = [to_plain(recipe_named(name)) for name in RECIPES]
    everything = [record for original in originals for record in records_of(original)]
    values = [value for record in everything for value in record.values()]
    names = [name for record in everything for name in record]
    reasons: list[str] = []
    accepted = 0
    for _ in range(6000):
        plain = copy.deepcopy(choose.choice(originals))
        places = records_of(plain)
        for _ in range(choose.choice([1, 1, 1, 2, 3])):
            place = choose.choice(places)
            name = choose.choice([*place, *place, *place, choose.choice(names), "unknown", "", "\ud800"])
            match choose.randrange(6):
                case 0:
                    place.pop(name, None)
                case 1:
                    place[name] = copy.deepcopy(choose.choice(everything))  # another record in its place
                case 2:
                    place[name] = copy.deepcopy(choose.choice(values))
                case 3 if type(place.get(name)) in (int, float):
                    # One of STRANGE may stand there already, beyond every float.
                    with contextlib.suppress(OverflowError):
                        place[name] *= choose.choice([-1, 0, 0.5, 2, 10**6, 10**40, 1e308])
                case _:
                    place[name] = choose.choice(STRANGE)
        try:
            result = from_plain(plain, Recipe)
        except ConfigurationError as error:
            reasons.append(str(error))
        else:
            # What is accepted can be kept.
            accepted += 1
            assert from_plain(json.loads(json.dumps(to_plain(result))), Recipe) == result
    assert all(reason.startswith("the configuration") for reason in reasons)
    assert len(reasons) > 3000 and accepted > 500


def test_damaged_text_is_answered_not_crashed_on(tmp_path: Path) -> None:
    choose = random.Random(1)
    pieces = [b"NaN", b"1e999", b"-", b"9" * 5000, b"[", b"{", b'"', b"null", b"\xff", b"\xef\xbb\xbf", b'"kind":', b""]
    texts = [json.dumps(to_plain(recipe_named(name))).encode() for name in RECIPES]
    reasons: list[str] = []
    accepted = 0
    for _ in range(2000):
        damaged = bytearray(choose.choice(texts))
        for _ in range(choose.randint(1, 3)):
            start = choose.randrange(len(damaged))
            stop = min(len(damaged), start + choose.randrange(20))
            match choose.randrange(5):
                case 0:
                    damaged[start] ^= 1 << choose.randrange(8)
                case 1:
                    damaged[start] = choose.randrange(256)
                case 2:
                    damaged[start:stop] = choose.choice(pieces)
                case 3:
                    damaged[start:start] = damaged[start:stop]  # twice
                case _:
                    damaged = damaged[: max(1, stop)] if choose.random() < 0.2 else damaged
        (tmp_path / "config.json").write_bytes(damaged)
        try:
            load_recipe(tmp_path)
            accepted += 1
        except (TrainingError, ConfigurationError) as error:
            reasons.append(str(error))
    assert all("config.json" in reason for reason in reasons)
    assert len(reasons) > 1000 and accepted > 100


@pytest.mark.parametrize(
    "content", [b"", b"[" * 100_000, b'{"kind":' * 100_000, b"9" * 5000, b"\xff\xfe", b"5", b"null"]
)
def test_a_configuration_file_of_something_else_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises((TrainingError, ConfigurationError), match=r"config\.json"):
        load_recipe(tmp_path)


# Sizes that nobody has memory for.


def with_model(**changes: Any) -> Recipe[Any, Any]:
    demo = recipe_named("demo")
    return replace(demo, model=replace(demo.model, **changes))


def with_stack(*fields: Any, **changes: Any) -> Recipe[Any, Any]:
    return replace(recipe_named("demo"), model=LMConfig(*fields, **changes))


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (with_model(width=10**9), "the model of this TransformerPSMConfig is too large"),
        (with_model(width=10**5), r"its weights take [\d,.]+ GB or more; there are [\d.]+ GB"),
        (with_model(width=10**30), "TransformerPSMConfig is too large"),
        (with_model(vocab_size=10**12), "TransformerPSMConfig is too large: its weights take 256,000.0 GB or more"),
        (with_model(vocab_size=10**30), "TransformerPSMConfig is too large"),
        (with_model(out_size=10**12), "TransformerPSMConfig is too large"),
        (with_model(chunk_length=10**12), "TransformerPSMConfig is too large"),
        (with_model(agg_layers=10**9), "its weights are more than 20,000 tensors"),
        (with_stack(5, ("gla",), width=10**9), "the model of this LMConfig is too large"),
        (with_stack(10**12, ("mamba",)), "LMConfig is too large"),
        (with_stack(5, (S4Options(state_size=10**12),)), "LMConfig is too large"),
        (replace(recipe_named("demo"), batch_tokens=10**12), r"a batch of 250,000,000,000 x 4 tokens takes"),
        (replace(recipe_named("demo"), curriculum=Curriculum((10**12,))), r"a batch of 1 x 1,000,000,000,000 tokens"),
        (replace(recipe_named("demo"), evaluation=Evaluation(lengths=(10**12,))), "choose a smaller length"),
    ],
    ids=lambda value: "" if isinstance(value, Recipe) else None,
)
def test_absurd_sizes_are_refused_before_memory_is_taken(
    tmp_path: Path, recipe: Recipe[Any, Any], message: str
) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ConfigurationError, match=message):
        Run(recipe, tmp_path / "run")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # KB
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("steps", [10**30, 2**63, 0, -1])
def test_absurd_numbers_are_refused(steps: int) -> None:
    for change in ("steps", "batch_tokens", "accumulate", "checkpoint_every", "keep", "log_every"):
        with pytest.raises(ValueError, match=f"{change}=.* (is out of the range of 64 bits|must be above 0)"):
            replace(recipe_named("demo"), **{change: steps})
    with pytest.raises(ValueError, match=r"lengths.*=.* (is out of the range of 64 bits|must be above 0)"):
        Curriculum((steps,))


@pytest.mark.parametrize("tied", [False, True])
def test_the_memory_of_a_run_is_counted_with_gradient_moments_and_average(
    monkeypatch: pytest.MonkeyPatch, tied: bool
) -> None:
    recipe = with_model(tie_weights=tied, vocab_size=1000)
    weights = 4 * sum(parameter.numel() for parameter in build_model(recipe.model).parameters())
    memory = 0
    monkeypatch.setattr("scannable.training.limits.memory_of", lambda device: memory)
    for ema, copies in ((0.0, 4), (0.5, 5)):
        memory = copies * weights
        check_memory(replace(recipe, ema=ema, batch_tokens=4, curriculum=Curriculum((4,)), evaluation=Evaluation()))
        memory -= 1
        with pytest.raises(ConfigurationError, match=f"{copies} times with gradient and optimizer"):
            check_memory(replace(recipe, ema=ema))


def test_the_memory_of_a_batch_is_its_tokens_or_its_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = replace(recipe_named("demo"), batch_tokens=80, evaluation=Evaluation(samples=5))
    memory = 80 * (16 + 4 * 5) - 1
    monkeypatch.setattr("scannable.training.limits.memory_of", lambda device: memory)
    with pytest.raises(ConfigurationError, match="a batch of 5 x 16 tokens"):
        check_batch_memory(recipe, (16,))
    check_batch_memory(replace(recipe, evaluation=Evaluation(samples=4)), (16,))


def test_what_else_is_wrong_with_a_model_is_left_to_the_one_who_builds_it(tmp_path: Path) -> None:
    wrong = with_stack(5, ("gla",), width=30, heads=4)
    check_memory(wrong)
    with pytest.raises(ValueError, match="width=30 is not a multiple of heads=4"):
        Run(wrong, tmp_path)
