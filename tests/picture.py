"""Take the README's pictures: ``python -m tests.picture docs`` runs the demo for a minute and photographs its page in Chromium."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import ViewportSize, expect, sync_playwright

from tests.test_page import CHROMIUM

SIZE = ViewportSize(width=1280, height=860)


def take(folder: Path) -> None:
    """Photograph the verdict, and the engine it is about, some seconds after the incident fires."""
    command = [sys.executable, "-m", "kvwatch", "demo", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as demo, sync_playwright() as driver:
        assert demo.stdout is not None
        page = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"]).new_page(viewport=SIZE, color_scheme="light")
        for line in demo.stdout:
            if url := re.search(r"page +(http\S+)", line):
                page.goto(url[1])
            if "CRITICAL   sglang-hicache" in line:
                break
        expect(page.locator("#summary")).to_contain_text("critical")
        page.wait_for_timeout(15_000)
        page.screenshot(path=folder / "verdict.png")
        page.locator(".engine").filter(has_text="sglang-hicache").screenshot(path=folder / "engine.png")
        demo.terminate()


if __name__ == "__main__":
    take(Path(sys.argv[1]))
