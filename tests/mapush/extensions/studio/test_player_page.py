"""The viewer's page in a real browser, clicked through. Needs playwright and Chromium (or the
browser in CHROMIUM).
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import mujoco
import pytest

from mapush import cli
from mapush.extensions.studio import page_guard
from mapush.extensions.studio import page_server as studio

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
SOFTWARE = (
    "--no-sandbox",
    "--use-gl=angle",
    "--use-angle=swiftshader",
    "--enable-unsafe-swiftshader",
)


class Page:
    """A browser page and its control panel."""

    def __init__(self, page, panel: studio.Panel) -> None:
        self.page = page
        self.panel = panel

    def wait(self, is_done: Callable[[], bool], seconds: float) -> bool:
        until = time.monotonic() + seconds
        while not is_done() and time.monotonic() < until:
            self.page.wait_for_timeout(100)
        return is_done()

    def click(self, name: str, is_done: Callable[[], bool]) -> None:
        """Click the panel's ``name`` control, with retries: a page without a GPU may miss a
        click.
        """
        for _ in range(8):
            self.page.mouse.move(*self.panel.places[name])
            self.page.wait_for_timeout(700)
            self.page.mouse.down()
            self.page.wait_for_timeout(700)
            self.page.mouse.up()
            if self.wait(is_done, 3.0):
                return
        raise AssertionError(f"{name} does nothing")


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
def test_a_browser_clicks_through_the_page(tmp_path: Path, monkeypatch) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    panels = []
    codes = []
    make = studio.Panel.__init__

    def remember(self, player) -> None:
        make(self, player)
        panels.append(self)

    monkeypatch.setattr(studio.Panel, "__init__", remember)
    monkeypatch.setattr(page_guard.secrets, "token_urlsafe", lambda size: "known")
    thread = threading.Thread(
        target=lambda: codes.append(cli.main(["play", "pretrained:cuboid", "--web", "8196"]))
    )
    thread.start()
    until = time.monotonic() + 60.0
    while not panels and time.monotonic() < until:
        time.sleep(0.1)
    panel = panels[0]
    player = panel.player
    controls = panel.player.controls
    try:
        with playwright.sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=CHROMIUM, args=SOFTWARE)
            viewer_page = Page(browser.new_page(viewport={"width": 760, "height": 640}), panel)
            viewer_page.page.goto("http://127.0.0.1:8196/?token=known")
            assert viewer_page.wait(lambda: "pause" in panel.places and panel.num_frames > 30, 60.0)
            forces = int(mujoco.mjtVisFlag.mjVIS_CONTACTFORCE)
            viewer_page.click(
                "contact forces", lambda: bool(panel.viewer.vis_options.flags[forces])
            )
            viewer_page.page.screenshot(path=tmp_path / "page.png", timeout=120_000)
            viewer_page.click("pause", lambda: controls.is_paused)
            viewer_page.page.wait_for_timeout(300)
            before = player.time_s
            viewer_page.click("step", lambda: player.time_s > before)
            # One a click, of which a slow page may have taken several.
            num_steps = (player.time_s - before) / 0.02
            assert num_steps == pytest.approx(round(num_steps))
            assert num_steps < 9
            episode = player.episode
            viewer_page.click("next", lambda: player.episode == episode + 1)
            viewer_page.click("pause", lambda: not controls.is_paused)
            viewer_page.click("policy zero", lambda: controls.policy == "zero")
            assert viewer_page.wait(lambda: player.commands == [[0.0] * 3] * 2, 5.0)
            browser.close()
    finally:
        controls.is_closed = True
        thread.join(30.0)
    assert codes == [0]
    assert (tmp_path / "page.png").stat().st_size > 10_000
