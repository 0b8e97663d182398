"""The whole story in a browser: teach, ask, improve, decide, teach more, go back, forget."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.serve.browser import driver

pytestmark = pytest.mark.slow

LONG = 300_000  # ms: for a round on a machine that is busy
SHORT_ROUND = {"epochs": 2, "episodes": 10}


def expect(locator: Any) -> Any:
    from playwright.sync_api import expect as playwrights

    return playwrights(locator)


def improve(page: Any) -> None:
    """Improve, and wait for the result."""
    part = page.locator("#improve")
    part.get_by_role("button", name="Improve", exact=True).click()
    expect(part.get_by_role("progressbar")).to_be_visible()
    expect(part).to_contain_text("is ready. Do you want to use it?", timeout=LONG)


def share_right(answers: list[str], right: list[str]) -> float:
    return sum(map(str.__eq__, answers, right)) / len(right)


def test_from_an_empty_project_to_forgotten_pictures(
    serve: Callable[..., Any],
    new_page: Callable[..., Any],
    flowers: dict[str, list[Path]],
    tmp_path: Path,
) -> None:
    server = serve()
    page = new_page(server.address, viewport={"width": 1440, "height": 900})
    driver.settings_of_rounds(page, SHORT_ROUND)
    first, later = list(flowers)[:12], list(flowers)[12:20]
    part = {name: page.locator(f"#{name}") for name in ("teach", "ask", "improve", "versions")}

    # A newcomer is told what to do.
    expect(part["teach"]).to_contain_text("What should it learn to tell apart?")
    expect(part["ask"]).to_contain_text("Nothing to choose from yet")

    # Teach: dropped, pasted and chosen.
    for name in first:
        driver.add_class(page, name)
    dropped, pasted, *chosen = first
    driver.drop(page, driver.card(page, dropped), flowers[dropped][:10])
    driver.card(page, pasted).get_by_role("button", name="Edit").focus()
    driver.paste(page, flowers[pasted][:10])
    broken = tmp_path / "letter.jpg"
    broken.write_text("This is no picture.")
    driver.teach(page, chosen[0], [broken, *flowers[chosen[0]][:10]])
    for name in chosen[1:]:
        driver.teach(page, name, flowers[name][:10])
    expect(page.locator("#project-facts")).to_have_text("12 classes · 120 pictures")
    expect(driver.card(page, chosen[0])).to_contain_text("letter.jpg")
    expect(driver.card(page, dropped).locator("img")).to_have_count(8)
    thumbnails = (
        "() => [...document.querySelectorAll('.tiles img')].filter(i => i.naturalWidth > 0)"
    )
    page.wait_for_function(f"({thumbnails})().length > 7")

    # Ask about one picture, and about many.
    driver.ask(page, flowers[first[3]][10:11])
    expect(part["ask"].locator(".verdict")).to_have_text(re.compile("."))
    expect(part["ask"].locator(".bars li")).to_have_count(5)
    held_out = [(name, file) for name in first for file in flowers[name][10:12]]
    driver.ask(page, [file for _, file in held_out])
    found = driver.answers(page, len(held_out))
    assert share_right(found, [name for name, _ in held_out]) > 0.75
    with page.expect_download() as download:
        part["ask"].get_by_role("button", name="Save as CSV").click()
    rows = list(csv.DictReader(io.StringIO(download.value.path().read_text("utf-8"))))
    assert {row["image"] for row in rows} == {file.name for _, file in held_out}
    assert [row["class"] for row in rows if row["rank"] == "1"] == found

    # Improve, look at the result, take it over.
    expect(part["improve"]).to_contain_text("It can study 120 new pictures of 12 new classes.")
    improve(page)
    expect(part["improve"]).to_contain_text("The 12 classes it has learned")
    expect(part["improve"]).to_contain_text("of 100 right")
    part["improve"].get_by_role("button", name="Use the new version").click()
    expect(driver.card(page, dropped)).to_contain_text("learned")
    expect(page.locator("#project-facts")).to_contain_text("version 2")

    # More classes are used at once, and a second round learns them.
    for name in later:
        driver.add_class(page, name)
        driver.teach(page, name, flowers[name][:10])
    expect(page.locator("#project-facts")).to_contain_text("20 classes · 200 pictures")
    held_out = [(name, flowers[name][10]) for name in flowers]
    driver.ask(page, [file for _, file in held_out])
    assert share_right(driver.answers(page, 20), [name for name, _ in held_out]) > 0.6
    improve(page)
    for row in ("The 12 classes it knew before", "The 8 classes that are new"):
        expect(part["improve"]).to_contain_text(row)
    part["improve"].get_by_role("button", name="Use the new version").click()

    # Go back, and forward again.
    driver.go_to(page, "Versions")
    versions = part["versions"].get_by_role("listitem")
    expect(part["versions"].locator(".chart svg")).to_be_visible()
    second = versions.filter(has=page.get_by_role("heading", name="Version 2"))
    third = versions.filter(has=page.get_by_role("heading", name="Version 3"))
    expect(third).to_contain_text("in use")
    second.get_by_role("button", name="Go to this version").click()
    expect(second).to_contain_text("in use")
    third.get_by_role("button", name="Go to this version").click()
    expect(third).to_contain_text("in use")

    # The map shows where asked pictures lie.
    driver.go_to(page, "Map")
    expect(page.locator(".map-class")).to_have_count(20)
    driver.drop(page, page.locator("#map"), flowers[first[0]][12:13])
    expect(page.locator(".map-picture")).to_have_count(1)

    # Forget the pictures of both rounds: the classes are named as before.
    driver.go_to(page, "Versions")
    for version, n in ((third, 80), (second, 120)):
        version.get_by_role("button", name="Delete the pictures").click()
        page.get_by_role("dialog").get_by_role("button", name=f"Delete {n} pictures").click()
        expect(page.get_by_role("dialog")).to_contain_text("It still knows")
        page.keyboard.press("Escape")
    expect(page.locator("#project-facts")).to_have_text("version 3 · 20 classes · 0 pictures")
    assert not list((server.folder / "pictures").rglob("*.*"))
    driver.go_to(page, "Teach")
    expect(driver.card(page, dropped)).to_contain_text("Its pictures were deleted.")
    driver.ask(page, [file for _, file in held_out])
    assert share_right(driver.answers(page, 20), [name for name, _ in held_out]) > 0.6
