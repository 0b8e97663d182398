"""The page in a browser: two tabs, a killed server, names that look like code, tokens, keys."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.serve.browser import driver

pytestmark = pytest.mark.slow

Serve = Callable[..., Any]
NewPage = Callable[..., Any]
# Each would show if it were read as HTML, as an address or as a formula.
NAMES = (
    "<script>window.attacked = 1</script>",
    "<img src=x onerror='window.attacked = 1'>",
    "\"quoted\" & 'single'",
    '=HYPERLINK("http://example.com")',
)
# Elements that reach over the right edge of the window.
TOO_WIDE = """() => [...document.querySelectorAll("#main *")].filter(
    each => each.getBoundingClientRect().right > innerWidth + 1).map(each => each.outerHTML)"""


def expect(locator: Any) -> Any:
    from playwright.sync_api import expect as playwrights

    return playwrights(locator)


@pytest.fixture
def pictures(tmp_path: Path) -> dict[str, list[Path]]:
    """Six pictures of each of three kinds, which colours tell apart."""
    rng, found = np.random.default_rng(0), {}
    for name, colour in (("red", (200, 40, 40)), ("green", (40, 180, 60)), ("blue", (50, 60, 210))):
        found[name] = []
        for i in range(6):
            noise = rng.normal(0, 30, (120, 160, 3))
            pixels = np.clip(np.array(colour) + noise, 0, 255).astype(np.uint8)
            found[name].append(tmp_path / f"{name}-{i}.jpg")
            Image.fromarray(pixels).save(found[name][-1])
    return found


def taught(page: Any, pictures: dict[str, list[Path]], n: int = 5) -> None:
    for name, files in pictures.items():
        driver.add_class(page, name)
        driver.teach(page, name, files[:n])
    all_of_them = f"{len(pictures)} classes · {n * len(pictures)} pictures"
    expect(page.locator("#project-facts")).to_contain_text(all_of_them)


def test_two_tabs_stay_in_step(
    serve: Serve, new_page: NewPage, pictures: dict[str, list[Path]]
) -> None:
    server = serve()
    one, two = new_page(server.address), new_page(server.address)
    taught(one, pictures)
    expect(two.locator("#project-facts")).to_contain_text("3 classes · 15 pictures")
    two.get_by_role("button", name="Edit red").click()
    two.get_by_label("Name", exact=True).fill("crimson")
    two.keyboard.press("Enter")
    expect(driver.card(one, "crimson")).to_be_visible()
    expect(driver.card(one, "red")).to_have_count(0)
    two.get_by_role("button", name="Delete the picture").first.click()
    expect(one.locator("#project-facts")).to_contain_text("14 pictures")
    two.get_by_role("button", name="Delete this class").click()
    two.get_by_role("button", name="Delete the class", exact=True).click()
    expect(driver.card(one, "crimson")).to_have_count(0)


def test_a_killed_server_comes_back_with_what_it_had(
    serve: Serve, new_page: NewPage, pictures: dict[str, list[Path]]
) -> None:
    server = serve()
    page = new_page(server.address)
    driver.settings_of_rounds(page, {"epochs": 200, "episodes": 50})
    taught(page, pictures)
    page.locator("#improve").get_by_role("button", name="Improve", exact=True).click()
    progress = page.locator("#improve").get_by_role("progressbar")
    expect(progress).to_be_visible()
    server.kill()
    lost = page.get_by_text("Not connected to the server")
    expect(lost).to_be_visible()
    driver.teach(page, "red", pictures["red"][5:])  # waits until the server is back
    server.start()
    expect(lost).to_be_hidden()
    expect(page.locator("#project-facts")).to_contain_text("3 classes · 16 pictures")
    expect(progress).to_be_visible()
    driver.ask(page, pictures["blue"][5:])
    expect(page.locator("#ask .verdict")).to_have_text("blue")
    page.get_by_role("button", name="Stop improving").click()
    expect(progress).to_be_hidden()
    expect(page.locator("#improve")).to_contain_text("It can study 16 new pictures")


def test_a_version_that_got_worse_is_not_recommended(
    serve: Serve, new_page: NewPage, pictures: dict[str, list[Path]]
) -> None:
    """Its classes can be added without it."""
    server = serve()
    page = new_page(server.address)
    taught(page, pictures, n=6)
    driver.settings_of_rounds(page, {"epochs": 1, "episodes": 2})
    page.route("**/api/versions", got_worse)
    improve = page.locator("#improve")
    improve.get_by_role("button", name="Improve", exact=True).click()
    expect(improve).to_contain_text("It got worse", timeout=300_000)
    expect(improve.get_by_role("button", name="Throw it away")).to_have_class(re.compile("primary"))
    page.unroute("**/api/rounds")
    page.unroute("**/api/versions")
    improve.get_by_role("button", name="Only add the new classes").click()
    expect(improve).to_contain_text("Version 3 is ready", timeout=300_000)
    expect(improve).to_contain_text("about the same")
    improve.get_by_role("button", name="Use the new version").click()
    expect(driver.card(page, "red")).to_contain_text("learned")
    driver.go_to(page, "Versions")
    thrown_away = page.get_by_role("listitem").filter(has_text="thrown away")
    expect(thrown_away).to_contain_text("Version 2")


def got_worse(route: Any) -> None:
    """Answer a request for the versions as if the candidate were clearly worse."""
    answer = route.fetch()
    said = answer.json()
    for version in said["versions"]:
        if version["state"] == "candidate":
            change = {"learned_in": 0, "round": 0, "classes": 3, "images": 100, "before": None}
            change |= {"untrained": 95.0, "after": 50.0, "estimated": False}
            version["outcome"] = {"naming": [change], "few_shot": None, "sentence": "Worse."}
    route.fulfill(response=answer, json=said)


def test_names_are_only_ever_text(
    serve: Serve, new_page: NewPage, pictures: dict[str, list[Path]], tmp_path: Path
) -> None:
    server = serve()
    page = new_page(server.address)
    for name, files in zip(NAMES, [*pictures.values(), pictures["red"][5:]], strict=True):
        driver.add_class(page, name)
        odd = tmp_path / f"{len(name)}<b>&.jpg"
        odd.write_bytes(files[0].read_bytes())
        driver.teach(page, name, [odd, *files[1:4]])
        expect(driver.card(page, name).get_by_role("heading")).to_have_text(name)
        expect(driver.card(page, name).locator("img")).not_to_have_count(0)
    driver.ask(page, [*(files[4] for files in pictures.values()), pictures["red"][5]])
    assert set(driver.answers(page, 4)) == set(NAMES)
    with page.expect_download() as download:
        page.get_by_role("button", name="Save as CSV").click()
    table = download.value.path().read_text("utf-8")
    assert not re.search(r'(^|,)"?=', table, re.MULTILINE), table
    for part in ("Versions", "Map"):
        driver.go_to(page, part)
    expect(page.locator(".map-class")).to_have_count(4)
    assert page.evaluate("window.attacked") is None
    assert page.locator("h3 img, h3 script, td img, b img").count() == 0


def test_a_protected_server_asks_for_a_token(
    serve: Serve, new_page: NewPage, pictures: dict[str, list[Path]]
) -> None:
    server = serve("--tokens")
    log = server.log.read_text()
    tokens = {word.split("_")[1]: word for word in re.findall(r"kedge_[a-z]+_[\w-]+", log)}
    page = new_page(server.address)
    page.get_by_label("Token").fill("kedge_wrong")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("not valid")
    page.get_by_label("Token").fill(tokens["teach"])
    page.keyboard.press("Enter")
    taught(page, pictures)
    improve = page.locator("#improve")
    expect(improve).to_contain_text("It can study 15 new pictures")
    expect(improve.get_by_role("button")).to_have_count(0)

    asker = new_page(f"{server.address}#token={tokens['ask']}")
    expect(asker.locator("#project-facts")).to_contain_text("3 classes")
    assert "token" not in asker.url
    expect(asker.get_by_label("New class")).to_be_hidden()
    driver.ask(asker, pictures["green"][5:])
    expect(asker.locator("#ask .verdict")).to_have_text("green")
    asker.get_by_role("button", name="Sign out").click()
    expect(asker.get_by_label("Token")).to_be_visible()
    expect(asker.locator("#ask")).to_be_hidden()


def test_classes_can_be_added_faster_than_the_server_answers(
    serve: Serve, new_page: NewPage
) -> None:
    server = serve()
    page = new_page(server.address)
    held: list[Any] = []
    page.route(
        "**/api/classes",
        lambda route: held.append(route) if route.request.method == "POST" else route.continue_(),
    )
    names = ("one", "two", "three")
    for name in names:
        page.get_by_label("New class").fill(name)
        page.keyboard.press("Enter")
    for _ in range(100):
        page.wait_for_timeout(50)
        if len(held) == len(names):
            break
    for route in held:
        route.continue_()
    for name in names:
        expect(driver.card(page, name)).to_be_visible()


def test_forgetting_a_single_picture_is_explained(
    serve: Serve, new_page: NewPage, pictures: dict[str, list[Path]]
) -> None:
    """The dialog warns about a class that had one picture, and not about others."""
    server = serve()
    page = new_page(server.address)
    page.route(
        "**/api/rounds", lambda route: route.continue_(post_data={"settings": {"train": "none"}})
    )
    taught(page, {"red": pictures["red"], "blue": pictures["blue"]})
    driver.add_class(page, "green")
    driver.teach(page, "green", pictures["green"][:1])
    expect(page.locator("#project-facts")).to_contain_text("11 pictures")
    improve = page.locator("#improve")
    improve.get_by_role("button", name="Improve", exact=True).click()
    expect(improve).to_contain_text("Version 2 is ready", timeout=300_000)
    improve.get_by_role("button", name="Use the new version").click()
    driver.go_to(page, "Versions")
    page.get_by_role("button", name="Delete the pictures").click()
    warning = page.get_by_role("dialog").locator(".notice")
    expect(warning).to_contain_text("green had only one picture")
    expect(warning).not_to_contain_text("red")


def test_keys_reach_everything(
    serve: Serve, new_page: NewPage, pictures: dict[str, list[Path]]
) -> None:
    """Teaching by the camera, and a dialog, without a pointer; on the width of a telephone."""
    server = serve()
    page = new_page(server.address, viewport={"width": 360, "height": 740})
    taught(page, pictures, n=4)
    expect(page.locator("#ask")).to_be_hidden()  # one part at a time
    assert page.evaluate(TOO_WIDE) == []
    page.get_by_role("button", name="Take pictures of blue").focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    shot = dialog.get_by_role("button", name="Take a picture")
    expect(shot).to_be_focused()
    page.keyboard.press("Enter")
    expect(dialog).to_contain_text("1 picture taken.")
    for _ in range(4):  # the focus stays inside
        page.keyboard.press("Tab")
        assert page.evaluate("!document.activeElement.closest('#main')")
    dialog.get_by_role("button", name="Use them").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#project-facts")).to_contain_text("13 pictures")
    expect(page.get_by_role("button", name="Take pictures of blue")).to_be_focused()
    page.get_by_role("button", name="See and edit all 4 pictures of red").focus()
    page.keyboard.press("Enter")
    expect(dialog.get_by_role("listitem")).to_have_count(4)
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    driver.go_to(page, "Ask")
    driver.ask(page, pictures["red"][4:5])
    expect(page.locator("#ask .verdict")).to_be_visible()
    for part in ("Ask", "Improve", "Versions", "Map"):
        driver.go_to(page, part)
        expect(page.locator(f"#{part.lower()}")).to_be_visible()
        assert page.evaluate(TOO_WIDE) == [], part
