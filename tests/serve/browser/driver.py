"""What a person does on the page, as functions."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Page = Any
Locator = Any


def card(page: Page, name: str) -> Locator:
    return page.get_by_role("article", name=name, exact=True)


def add_class(page: Page, name: str) -> None:
    page.get_by_label("New class").fill(name)
    page.keyboard.press("Enter")
    card(page, name).wait_for()


def choose(page: Page, button: Locator, files: Sequence[Path]) -> None:
    with page.expect_file_chooser() as chooser:
        button.click()
    chooser.value.set_files([str(file) for file in files])


def teach(page: Page, name: str, files: Sequence[Path]) -> None:
    choose(page, card(page, name).get_by_role("button", name="Add pictures"), files)


def ask(page: Page, files: Sequence[Path]) -> None:
    choose(page, page.locator("#ask").get_by_role("button", name="Choose pictures"), files)


def answers(page: Page, n: int) -> list[str]:
    """The answers in the table, once it has n rows."""
    rows = page.locator("#ask .row-answer")
    page.wait_for_function("n => document.querySelectorAll('#ask .row-answer').length === n", arg=n)
    return rows.all_inner_texts()


def transfer(page: Page, files: Sequence[Path]) -> Any:
    """A DataTransfer with files, as dropping and pasting have them."""
    content = [[file.name, base64.b64encode(file.read_bytes()).decode()] for file in files]
    return page.evaluate_handle(
        """content => {
            const transfer = new DataTransfer();
            for (const [name, text] of content) {
                const bytes = Uint8Array.from(atob(text), c => c.charCodeAt(0));
                transfer.items.add(new File([bytes], name, { type: "image/jpeg" }));
            }
            return transfer;
        }""",
        content,
    )


def drop(page: Page, target: Locator, files: Sequence[Path]) -> None:
    given = {"dataTransfer": transfer(page, files)}
    for event in ("dragenter", "dragover", "drop"):
        target.dispatch_event(event, given)


def paste(page: Page, files: Sequence[Path]) -> None:
    """Paste at the control that has the focus."""
    page.evaluate(
        """transfer => (document.activeElement ?? document.body).dispatchEvent(
            new ClipboardEvent("paste", { clipboardData: transfer, bubbles: true }))""",
        transfer(page, files),
    )


def settings_of_rounds(page: Page, settings: dict[str, Any]) -> None:
    """Let rounds that the page starts have these settings: shorter ones than people want."""
    page.route("**/api/rounds", lambda route: route.continue_(post_data={"settings": settings}))


def go_to(page: Page, part: str) -> None:
    page.get_by_role("navigation").get_by_role("link", name=part).click()
