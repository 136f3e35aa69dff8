"""Slow pages, which find the tests that read a page before it shows the answer to their last action.

    NBTRAIN_SLOW_PAGES=1 pytest tests/lab/ui

Each request to nbtrain's server leaves the page late, its answer arrives late too, and the page's scripts
run slowly. NBTRAIN_SLOW_PAGES seeds the delays.
"""

from typing import Any

# How much longer a script runs than on this machine.
PROCESSOR_SLOWDOWN = 4
LEAST_MS, MOST_MS = 100, 500
# The timer of a page with a fake clock is replaced after this script has kept the real one.
DELAY = """(() => {
  const { fetch, setTimeout } = window;
  let seed = SEED;
  // A linear congruential generator with the constants of Numerical Recipes.
  const random = () => (seed = (1664525 * seed + 1013904223) % 4294967296) / 4294967296;
  const late = () => new Promise((done) => setTimeout(done, LEAST + (MOST - LEAST) * random()));
  window.fetch = async (...asked) => {
    const address = String(asked[0]?.url ?? asked[0]);
    if (!/\\/(nbtrain|models)\\b/.test(address)) return fetch(...asked);
    await late();
    try {
      return await fetch(...asked);
    } finally {
      await late();
    }
  };
})()"""


def slow_pages(browser: Any, seed: int) -> None:
    """Make all pages of a browser slow that are opened from now on; `seed` chooses the delays."""
    script = DELAY.replace("SEED", str(seed)).replace("LEAST", str(LEAST_MS)).replace("MOST", str(MOST_MS))
    new_context = browser.new_context

    def slow_context(**options: Any) -> Any:
        context = new_context(**options)
        context.add_init_script(script)
        new_page = context.new_page

        def slow_page() -> Any:
            page = new_page()
            throttle = {"rate": PROCESSOR_SLOWDOWN}
            context.new_cdp_session(page).send("Emulation.setCPUThrottlingRate", throttle)
            return page

        context.new_page = slow_page
        return context

    browser.new_context = slow_context
    browser.new_page = lambda **options: slow_context(**options).new_page()
