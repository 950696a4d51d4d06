"""What a person sees of it and does with it: every step, fork and rewind, keys, links, narrow screens."""

import re
import sys
import webbrowser
from pathlib import Path
from typing import Any

import pytest

import scannable as sc
from scannable.cli.main import main
from scannable.explain import PAGE

from browsing import Open, Visit

PRIME = "\N{PRIME}"


def bracket(older: str, newer: str) -> str:
    return f"({older}{newer})"


def shown(one: Visit) -> dict[str, Any]:
    """What stands on the page, read off its text."""
    return one.page.evaluate(
        """() => ({
          bits: [...document.querySelectorAll("#bits .bit b")].map((bit) => bit.textContent).join(""),
          held: [...document.querySelectorAll("#counter-svg .node.done title")].map((title) => title.textContent),
          folds: [...document.querySelectorAll("#counter-svg .fold title")].map((title) => title.textContent),
          prefix: document.querySelector(".ways .of-counter .what").textContent,
          tree: document.querySelector(".ways .of-tree .what").textContent,
          costs: [...document.querySelectorAll("#costs tr")].map((row) => [...row.cells].slice(1).map((cell) => cell.textContent)),
          caption: document.querySelector("#counter-caption").textContent,
          sum: document.querySelector("#bits .sum").textContent,
        })"""
    )


def test_every_step_shows_the_counter_of_the_library(visit: Open) -> None:
    one = visit("n=13")
    one.press("c")
    counter, calls = sc.BinaryCounter(bracket, "ε"), 0
    for name in "abcdefghijklm":
        before, t = counter.fork(), counter.position
        counter.push(name)
        merges = (~t & (t + 1)).bit_length() - 1
        for taken in range(merges + 1):
            # On its way the element has taken in as many roots.
            one.press("ArrowRight")
            now, kept = shown(one), {k: root for k, root in before.roots.items() if k >= taken}
            assert now["bits"] == f"{sum(2**k for k in kept):04b}" and f"t = {t} → {t + 1}" in now["sum"]
            assert set(kept.values()) < set(now["held"]) and len(now["held"]) == len(kept) + 1
            assert now["prefix"] == before.prefix()
            assert ("Agg(" in now["caption"]) == (taken > 0)
        one.press("ArrowRight")
        now, calls = shown(one), calls + merges
        calls += counter.roots.keys() != {max(counter.roots)}
        assert now["bits"] == f"{t + 1:04b}" and f"t = {t + 1}" in now["sum"]
        assert sorted(now["held"]) == sorted(counter.roots.values())
        assert sorted(now["folds"]) == sorted(counter.state.folds.values())
        assert now["prefix"] == counter.prefix() and now["costs"][0][1] == str(calls)
    assert one.page.locator(".transport[data-target=counter] [data-do=step]").get_attribute("aria-disabled") == "true"
    assert one.hash.endswith("tree=0&at=13.0")


def test_the_tree_gets_its_prefixes_level_by_level(visit: Open) -> None:
    one = visit("n=8&at=5.0")
    one.press("t")
    known = []
    for _ in range(7):
        one.press("ArrowRight")
        known.append(one.page.evaluate("[0, 1, 2, 3, 4, 5, 6, 7, 8].filter((t) => session.treeKnows(t))"))
    assert known == [[], [], [], [0, 8], [0, 4, 8], [0, 2, 4, 6, 8], list(range(9))]
    now = shown(one)
    assert now["tree"] == now["prefix"] == "(((ab)(cd))e)"
    assert one.text(".verdict").startswith(
        "Tree and counter have the same brackets. The loop has other brackets, and another value"
    )
    # Blocks that the counter holds are marked in the tree.
    assert one.texts("#tree-svg .node.held title") == ["e", "((ab)(cd))"]


def test_the_table_has_every_prefix(visit: Open) -> None:
    one = visit("n=40&tree=11&at=23.0")
    counter = sc.BinaryCounter(bracket, "ε")
    names: list[str] = one.page.evaluate("session.elements[0].map((value) => value.name)")
    rows = one.page.evaluate(
        "[...document.querySelectorAll('#prefixes tr')].map((row) => [...row.cells].map((cell) => cell.textContent))"
    )
    assert len(rows) == 41
    for t, row in enumerate(rows):
        assert row == [str(t), f"{t:06b}", counter.prefix(), "✓", "✓" if t <= 23 else "·"]
        if t < 40:
            counter.push(names[t])
    one.page.locator("[data-go='7']").click()
    assert one.hash.endswith("at=7.0")


def test_a_fork_goes_on_by_itself_and_a_rewind_calls_nothing(visit: Open) -> None:
    one = visit("n=13&at=5.0")
    trunk = sc.BinaryCounter(bracket, "ε")
    for name in "abcde":
        trunk.push(name)
    branch = trunk.fork()
    before = shown(one)["costs"][0]
    one.press("c", "f")
    assert one.hash.endswith("forks=0@5:5.0&on=1") and shown(one)["costs"][0] == before
    for name in (f"f{PRIME}", f"g{PRIME}", f"h{PRIME}"):
        one.press("Shift+ArrowRight")
        branch.push(name)
        assert shown(one)["prefix"] == branch.prefix()
    assert one.texts(".branch .prefix") == [trunk.prefix(), branch.prefix()]
    assert one.texts(".branch .spot") == ["t = 5 = 101₂", "t = 8 = 1000₂"]

    # A branch of the branch, from a point that is rewound to.
    one.page.locator("#rewind-to").fill("6")
    one.page.locator("#rewind").click()
    assert one.text("#said") == "Rewound to t = 6, with no call." and shown(one)["prefix"] == f"(((ab)(cd))(ef{PRIME}))"
    one.press("f", "Shift+ArrowRight")
    assert shown(one)["prefix"] == f"((((ab)(cd))(ef{PRIME}))g″)"
    assert shown(one)["tree"] == "over the first branch's elements only"

    # The first one stands where it stood, and goes on with its own elements.
    one.press("b", "Shift+ArrowRight")
    trunk.push("f")
    assert shown(one)["prefix"] == trunk.prefix() and one.hash.startswith(
        "#n=13&agg=brackets&tree=0&at=6.0&forks=0@5:6.0,1@6:7.0"
    )
    # Five calls to t = 5, which all share; two for f, two for f′, one for g″. Two or three roots and their folds each,
    # with ((ab)(cd)) in all, (ef′) and its fold in two.
    assert (
        one.text("#shared")
        == "All branches together: 10 Agg calls and 7 values held. Without sharing it would be 22 and 11."
    )


def test_branches_share_what_they_hold(visit: Open) -> None:
    one = visit("n=13&at=8.0&forks=0@8:9.0,0@8:10.0&on=2")
    # (((ab)(cd))((ef)(gh))) is held by all three.
    assert "and 5 values held" in one.text("#shared") and one.text("#shared").endswith("and 7.")


@pytest.mark.parametrize(
    ("position", "keys", "message"),
    [
        ("n=4&at=4.0", ["f"], "The stream ends here. Rewind first, or choose a longer one."),
        ("n=9&at=2.0", ["f"] * 5, "There are 5 branches, which is the limit. Reset to begin again."),
    ],
)
def test_a_fork_that_cannot_be_says_why(visit: Open, position: str, keys: list[str], message: str) -> None:
    one = visit(position)
    one.press(*keys)
    assert one.text("#branch-message") == message


@pytest.mark.parametrize(
    ("to", "message"),
    [("9", "t = 9 is ahead of t = 5. A rewind goes back; step on instead."), ("14", "Rewind takes a whole number from 0 to 5."), ("", "Rewind takes a whole number from 0 to 5.")],
)  # fmt: skip
def test_a_rewind_that_cannot_be_says_why(visit: Open, to: str, message: str) -> None:
    one = visit("n=13&at=5.0")
    one.page.locator("#rewind-to").fill(to)
    one.page.locator("#rewind").click()
    assert one.text("#branch-message") == message and one.hash.endswith("at=5.0")


def test_every_key_does_what_the_list_says(visit: Open) -> None:
    one = visit("n=13")

    def after(*keys: str) -> str:
        one.press(*keys)
        return one.hash.removeprefix("#n=13&agg=brackets&")

    assert after("ArrowRight", "ArrowRight") == "tree=2&at=1.0"
    assert after("ArrowLeft") == "tree=1&at=0.1"
    assert after("t", "ArrowRight") == "tree=2&at=0.1"
    assert after("Shift+ArrowRight") == "tree=3&at=0.1" and after("Shift+ArrowRight") == "tree=7&at=0.1"
    assert after("Shift+ArrowLeft") == "tree=3&at=0.1" and after("Home") == "tree=0&at=0.1"
    assert after("c", "End") == "tree=0&at=13.0" and after("r", "r") == "tree=0&at=11.0"
    assert after("Shift+ArrowLeft") == "tree=0&at=10.0" and after("ArrowLeft") == "tree=0&at=9.2"
    assert after("f") == "tree=0&at=9.2&forks=0@9:9.0&on=1" and after("b") == "tree=0&at=9.2&forks=0@9:9.0&on=0"
    assert after("a", "Home") == "tree=0&at=0.0&forks=0@9:9.0&on=0"
    assert after("+") == "#n=14&agg=brackets&tree=0&at=0.0&forks=0@9:9.0&on=0"
    assert after("-", "o") == "#n=13&agg=numbers&tree=0&at=0.0&forks=0@9:9.0&on=0"
    one.press("z")
    assert one.page.locator("#fit").is_checked()
    one.press("?")
    listed = "".join(one.texts("dialog kbd"))
    assert one.page.locator("#shortcuts").is_visible()
    one.press("ArrowRight", "Escape")
    assert not one.page.locator("#shortcuts").is_visible() and "at=0.0" in one.hash
    keys: list[str] = one.page.evaluate("Object.keys(KEYS)")
    names: dict[str, str] = {"ArrowRight": "→", "ArrowLeft": "←", " ": "Space", "-": "\N{MINUS SIGN}"}
    assert all(names.get(key, key.upper() if len(key) == 1 else key) in listed for key in keys)


def test_keys_are_left_to_what_has_the_focus(visit: Open) -> None:
    one = visit("n=13")
    one.page.locator("#length").focus()
    one.press("ArrowRight", "t", "End")
    assert one.hash == "#n=13&agg=brackets&tree=0&at=0.0"
    one.page.locator(".transport[data-target=tree] [data-do=step]").focus()
    one.press("Space")
    assert one.hash.endswith("tree=1&at=0.0") and one.page.evaluate("playing.size") == 0
    one.page.locator("#reset").focus()
    one.press("Control+ArrowRight", "Enter")
    assert one.hash.endswith("tree=0&at=0.0")


def test_everything_can_be_reached_and_is_named_and_shows_its_focus(visit: Open) -> None:
    one = visit("n=5&at=3.0&forks=0@2:3.0&on=0")
    seen: list[str] = []
    for _ in range(80):
        one.press("Tab")
        focused = one.page.evaluate(
            """() => {
              const element = document.activeElement;
              if (element === document.body) return null;
              const label = element.closest("label")?.textContent;
              const name = element.getAttribute("aria-label") || element.textContent.trim() || label?.trim();
              return [name || `nameless ${element.outerHTML}`, getComputedStyle(element).outlineStyle, element.outerHTML];
            }"""
        )
        if focused is None or focused[2] in seen:
            break
        seen.append(focused[2])
        assert focused[1] == "solid" and not focused[0].startswith("nameless")
    controls = one.page.evaluate(
        "[...document.querySelectorAll('main button, main input, main select, header button')].map((one) => one.outerHTML)"
    )
    assert len(seen) > 40 and set(controls) <= set(seen)


def test_a_step_is_said_to_those_who_listen(visit: Open) -> None:
    one = visit("n=3&at=1.0")
    one.press("c", "ArrowRight", "ArrowRight")
    assert (
        one.text("#said")
        == "Counter: The carry takes in root[0], which is empty now, and moves up a level. root[1] is empty."
    )
    assert (
        one.page.locator("#counter-svg").get_attribute("aria-label")
        == f"Binary counter at t = 1. {one.text('#said').removeprefix('Counter: ')}"
    )
    one.press("t", "ArrowRight")
    assert one.text("#said") == "Tree: Upsweep, level 1: blocks of 2 from pairs of blocks of 1. 1 call."


def test_it_plays_to_the_end_and_can_be_paused(visit: Open) -> None:
    one = visit("n=6")
    # Paused: a clock that is only installed goes on by itself, and on a busy machine a step too far.
    one.page.clock.install(time=0)
    one.page.clock.pause_at(60)
    one.press("c", "Space")
    one.page.clock.run_for(1600)
    assert one.hash.endswith("tree=0&at=1.1")
    one.press("Space")
    one.page.clock.run_for(5000)
    assert one.hash.endswith("tree=0&at=1.1")
    one.page.locator("#speed").fill("4")
    one.page.locator(".transport[data-target=both] [data-do=play]").click()
    assert one.page.evaluate("[...playing]") == ["tree", "counter"]
    one.page.clock.run_for(1000)
    assert one.hash.endswith("tree=5&at=5.0")
    one.page.clock.run_for(3000)
    assert one.hash.endswith("tree=5&at=6.0") and one.page.evaluate("playing.size") == 0
    # Once more from the beginning.
    one.page.locator(".transport[data-target=both] [data-do=play]").click()
    assert one.hash.endswith("tree=0&at=0.0")


def test_a_length_that_cannot_be_says_what_can(visit: Open) -> None:
    one = visit("n=13&at=3.0")

    def typed(length: str) -> str:
        one.page.locator("#length").fill(length)
        one.page.locator("#length").blur()
        return one.text("#length-message")

    for length, name in {"0": "0", "257": "257", "2.5": "2.5", "-3": "-3", "": "That"}.items():
        assert typed(length) == f"{name} is not a whole number from 1 to 256; beyond that the picture cannot be read."
        assert one.hash == "#n=13&agg=brackets&tree=0&at=3.0"
    assert typed("12") == "" and one.hash.startswith("#n=12&")


def test_a_shorter_stream_drops_the_branches_that_began_later(visit: Open) -> None:
    one = visit("n=13&at=9.0&forks=0@9:10.0,0@3:4.0,1@11:12.0,2@5:6.0&on=4")
    one.page.locator("#length").fill("8")
    one.page.locator("#length").blur()
    assert one.hash == "#n=8&agg=brackets&tree=0&at=8.0&forks=0@3:4.0,1@5:6.0&on=2"


def test_a_position_can_be_linked(visit: Open) -> None:
    link = "#n=29&agg=numbers&tree=6&at=23.3&forks=0@5:7.0,1@6:12.1,0@20:20.0&on=2"
    one = visit(link[1:])
    assert one.hash == link
    one.press("c", "ArrowRight")
    one.page.wait_for_function("location.hash.includes('6:13.0')")
    # A link that is followed while the page is open.
    one.page.evaluate("location.hash = '#n=3&agg=words&tree=1&at=2.0'")
    one.page.wait_for_function("session.n === 3")
    assert shown(one)["prefix"] == "(ab) = ab"


UNREADABLE = {
    "n=9999": "#n=256&agg=brackets&tree=0&at=0.0",
    "n=0&tree=99&at=7.5": "#n=1&agg=brackets&tree=1&at=0.0",
    "n=x&agg=toString&tree=-1&at=1": "#n=13&agg=brackets&tree=0&at=0.0",
    "n=4&at=1.99&on=7": "#n=4&agg=brackets&tree=0&at=4.0",
    "n=4&forks=3@1:1.0,0@4:4.0,0@2:2.1,,x&on=1": "#n=4&agg=brackets&tree=0&at=0.0&forks=0@2:2.1&on=1",
    "%&==&=": "#n=13&agg=brackets&tree=0&at=0.0",
}


def test_a_link_that_cannot_be_read_shows_what_can(visit: Open) -> None:
    one = visit("%&n=5&agg=numbres&at=99.0")
    assert one.hash == "#n=5&agg=brackets&tree=0&at=0.0"
    for link, shows in UNREADABLE.items():
        assert one.page.evaluate("link => Session.fromHash(link).toHash()", f"#{link}") == shows


OVERFLOWING = """() => {
  const wide = [];
  for (const element of document.querySelectorAll("body *")) {
    if (element.closest(".picture, .scroll, .hidden, dialog, .icons")) continue;
    const { left, right, width } = element.getBoundingClientRect();
    if (width && (left < -0.5 || right > innerWidth + 0.5)) wide.push(element.outerHTML.slice(0, 90));
    const card = element.closest(".card, .panel, .toolbar")?.getBoundingClientRect();
    if (width && card && right > card.right + 0.5) wide.push(`beyond its card: ${element.outerHTML.slice(0, 90)}`);
  }
  return [document.documentElement.scrollWidth > innerWidth, ...wide];
}"""


@pytest.mark.parametrize(
    "width", [pytest.param(320, marks=pytest.mark.slow), 360, pytest.param(768, marks=pytest.mark.slow), 1280]
)
def test_nothing_is_wider_than_the_screen(visit: Open, width: int) -> None:
    one = visit("n=13&at=11.1&tree=5&forks=0@9:10.0,0@3:4.0,1@11:12.0,2@5:6.0&on=4", width=width, height=800)
    for position in (
        "",
        "n=256&tree=17&at=255.0",
        "n=1",
        "n=64&agg=words&tree=9&at=63.0",
        "n=40&agg=numbers&tree=11&at=39.0",
    ):
        if position:
            one.page.evaluate(f"location.hash = '#{position}'")
            one.page.wait_for_function(f"session.toHash().startsWith('#{position.partition('&')[0]}&')")
        one.page.evaluate("document.getElementById('all').open = true")
        assert one.page.evaluate(OVERFLOWING) == [False], position


def test_an_address_that_is_entered_just_after_a_step_is_not_lost(visit: Open) -> None:
    one = visit("n=13")
    # As if the delayed write of the step came between the new address and the event that tells of it.
    one.page.evaluate("() => { step(); location.hash = '#n=40'; writeHash(); }")
    one.page.wait_for_function("session.n === 40", timeout=5000)
    one.page.wait_for_function("location.hash.startsWith('#n=40')", timeout=5000)


TEXT_OUTSIDE = """() => [...document.querySelectorAll(".node, .fold, .chip")].flatMap((group) => {
  const boxes = [...group.querySelectorAll("rect")].map((rect) => rect.getBBox());
  const [left, right] = [Math.min(...boxes.map((box) => box.x)), Math.max(...boxes.map((box) => box.x + box.width))];
  const out = [...group.querySelectorAll("text")].filter((text) => {
    const box = text.getBBox();
    return text.textContent && (box.x < left - 0.5 || box.x + box.width > right + 0.5);
  });
  return out.map((text) => text.textContent);
})"""


@pytest.mark.parametrize("width", [360, 1280])
def test_no_text_leaves_its_bar(visit: Open, width: int) -> None:
    one = visit("n=1&tree=99", width=width)
    for n, op in ((1, "words"), (7, "brackets"), (13, "numbers"), (16, "brackets"), (27, "words"), (64, "brackets")):
        one.page.evaluate(f"changeLength({n}); changeOperator('{op}'); session.goTo({n - 1}); step()")
        assert one.page.evaluate(TEXT_OUTSIDE) == [], (n, op)
    one.page.locator("#fit").check()
    assert one.page.evaluate(TEXT_OUTSIDE) == []
    assert one.page.evaluate(
        "[...document.querySelectorAll('.picture')].every((one) => one.scrollWidth <= one.clientWidth)"
    )


def test_a_wide_picture_follows_the_element_and_keeps_the_names_of_its_rows(visit: Open) -> None:
    one = visit("n=64&tree=9&at=47.0", width=360)
    seen = one.page.evaluate(
        """() => {
          const picture = document.querySelector("#counter .picture"), { left, right } = picture.getBoundingClientRect();
          const inside = (element) => { const box = element.getBoundingClientRect(); return box.left >= left - 1 && box.right <= right + 1; };
          return [picture.scrollLeft > 500, inside(picture.querySelector(".node.fresh .bar")), inside(picture.querySelector(".gutter .shade"))];
        }"""
    )
    assert seen == [True, True, True]


def test_light_and_dark_are_the_systems_until_they_are_chosen(visit: Open) -> None:
    def paper(one: Visit) -> str:
        return one.page.evaluate("getComputedStyle(document.body).backgroundColor")

    light, dark = visit(color_scheme="light"), visit(color_scheme="dark")
    assert (paper(light), paper(dark)) == ("rgb(250, 249, 246)", "rgb(20, 19, 26)")
    light.press("d")
    dark.page.locator("#theme").click()
    assert (paper(light), paper(dark)) == ("rgb(20, 19, 26)", "rgb(250, 249, 246)")
    light.page.reload()
    assert paper(light) == "rgb(20, 19, 26)"


CONTRASTS = """() => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const luminance = (color) => {
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].map((v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (a, b) => { const [dark, light] = [luminance(a), luminance(b)].sort((x, y) => x - y); return (light + 0.05) / (dark + 0.05); };
  const style = getComputedStyle(document.documentElement), color = (name) => style.getPropertyValue(`--${name}`).trim();
  const found = {};
  for (const text of ["ink", "soft", "accent", "printed", "older", "newer"]) found[text] = contrast(color(text), color("card"));
  found.button = contrast(color("on-accent"), color("accent"));
  for (let k = 0; k <= 8; k++) {
    const hue = 232 + 27 * k, fill = `oklch(${color("level")} ${hue})`;
    found[`letter on level ${k}`] = contrast(color("ink"), fill);
    found[`bracket ${k} on level ${k}`] = contrast(`oklch(${color("level-ink")} ${hue})`, fill);
    found[`bracket ${k} on the card`] = contrast(`oklch(${color("level-ink")} ${hue})`, color("card"));
  }
  return found;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_what_is_behind_it(visit: Open, scheme: str) -> None:
    """WCAG's 4.5 for text."""
    found: dict[str, float] = visit(color_scheme=scheme).page.evaluate(CONTRASTS)
    assert {name: round(value, 2) for name, value in found.items() if value < 4.5} == {}


def test_nothing_moves_for_those_who_asked_for_it(visit: Open) -> None:
    # Noted as it begins: on a busy machine it is over before anybody asks.
    note = """() => {
      window.moved = 0;
      for (const kind of ["animationstart", "transitionrun"]) addEventListener(kind, () => { window.moved += 1; });
    }"""
    calm, lively = visit("n=4"), visit("n=4", reduced_motion="no-preference")
    for one in (calm, lively):
        one.page.evaluate(note)
        one.press("ArrowRight")
    lively.page.wait_for_function("window.moved > 0")
    assert calm.page.evaluate("() => [window.moved, document.getAnimations().length]") == [0, 0]


def test_everything_the_page_needs_lies_beside_it() -> None:
    text = PAGE.read_text(encoding="utf-8")
    files = re.findall(r'(?:src|href)="([^"#]+)"', text)
    assert {"style.css", "scan.js"} <= set(files)
    for name in files:
        assert name.startswith("data:") or (PAGE.parent / name).is_file(), name
    for path in PAGE.parent.glob("*.*"):
        assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)", path.read_text(encoding="utf-8")), path


@pytest.mark.parametrize("works", [True, False])
def test_explain_opens_the_page(
    works: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda url: opened.append(url) or works)
    monkeypatch.setattr(sys, "argv", ["scannable", "explain"])
    main()
    said = capsys.readouterr().out.splitlines()
    assert opened == [PAGE.as_uri()] and Path(said[0]) == PAGE
    assert said[1:] == ([] if works else ["no browser was found; open this file in one"])
    monkeypatch.setattr(sys, "argv", ["scannable", "explain", "--no-browser"])
    main()
    assert len(opened) == 1 and capsys.readouterr().out.strip() == str(PAGE)
