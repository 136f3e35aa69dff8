"""Cost and energy of a run, computed by hand, with the user's price table, and with invalid tables."""

import pytest

from nbtrain.base.errors import ConfigError
from nbtrain.base.workspace import data_home
from nbtrain.config.load import load
from nbtrain.planner.budget.cost import CostEstimate, Price, estimate_cost, read_prices, user_prices
from nbtrain.planner.plan import plan

pytestmark = pytest.mark.usefixtures("examples")

HOUR = 3600


def write(text: str) -> None:
    data_home().mkdir(parents=True, exist_ok=True)
    user_prices().write_text(text, encoding="utf-8")


def cost(*overrides: str, hours: float = 10) -> CostEstimate:
    """Return the cost of 10 hours on four A100-40GB."""
    return estimate_cost(load("gpt-125m-4xdp", overrides, check=False), hours * HOUR)


def test_money_is_gpu_hours_times_the_price():
    """The cost is GPU hours times the price: 40 hours at the geometric mean of 0.80 and 3.00."""
    found = cost()
    assert found.device_hours == pytest.approx(40)
    assert found.price is not None and (found.price.low, found.price.high) == (0.8, 3.0)
    assert found.money == pytest.approx(40 * 2.4**0.5)
    assert found.rows()["money"] == ("about 62 USD (32 to 120): 1.55 per GPU hour, 2026-05, prices.yaml")


def test_energy_is_gpu_hours_times_watts():
    """Energy is GPU hours times watts: 400 W, times 1.2 for the rest of the machine, times 1.15 for
    cooling.
    """
    assert cost().energy_kwh == pytest.approx(40 * 0.4 * 1.2 * 1.15)
    assert cost("resources.gpu_type=H100").energy_kwh == pytest.approx(40 * 0.7 * 1.2 * 1.15)


def test_the_whole_machine_is_paid():
    """A run on four of a machine's eight GPUs pays for all eight, and a run on CPUs for none."""
    assert load("gpt-125m-4xdp", ["resources.gpus_per_node=8"], check=False).paid_gpus == 8
    assert cost("resources.gpus_per_node=8").device_hours == pytest.approx(80)
    assert load("gpt-tiny").paid_gpus == 0


def test_what_costs_nothing_and_what_is_not_known():
    """The plan of a CPU run has no cost. If a device has no price, the plan says where to set one."""
    on_cpu = estimate_cost(load("gpt-tiny"), HOUR)
    assert (on_cpu.device_hours, on_cpu.money, on_cpu.rows()) == (0.0, None, {})
    rare = cost("resources.gpu_type=L40S")
    assert rare.money is None and rare.energy_kwh
    assert rare.rows()["money"] == "no price; set the price of the device in data/prices.yaml"
    spot = cost("resources.capacity=spot")
    assert (
        spot.rows()["money"]
        == "no price for spot machines; set the device's `spot` price in data/prices.yaml"
    )
    unknown = cost("resources.gpu_type=null")
    assert (unknown.price, unknown.energy_kwh) == (None, None)
    assert estimate_cost(load("gpt-125m"), None).device_hours is None


def test_the_users_table_replaces_devices_and_lines():
    """The user's price table replaces the prices of the devices it lists; other devices keep the shipped
    prices, and the plan names the file.
    """
    write('date: "2026-11"\nper_kwh: 0.3\nper_device_hour:\n  A100-40GB: {usual: 0.5}\n')
    found = cost()
    assert found.price == Price(0.5, 0.5, 0.5, "USD", "2026-11", "data/prices.yaml")
    assert found.money == pytest.approx(40 * 0.5 + 40 * 0.4 * 1.2 * 1.15 * 0.3)
    assert found.rows()["money"] == "about 20 USD: 0.50 per GPU hour, 2026-11, data/prices.yaml"
    assert found.rows()["energy"] == (
        "about 22 kWh, plus or minus a third; 6.6 USD for electricity at 0.3 USD per kWh"
    )
    assert read_prices().value["per_device_hour"]["H100"]["usual"] == 2.95
    shown = plan(load("gpt-125m-4xdp"), use_measured=False)
    assert shown.sections()["Time"]["money"].endswith("data/prices.yaml")
    assert shown.to_dict()["cost"]["money"] == shown.cost.money


def test_a_shipped_price_is_none_in_another_currency():
    """A shipped price, which is in dollars, is not used if the table has another currency."""
    write("currency: EUR\nper_device_hour:\n  A100-80GB: {usual: 2}\n")
    assert cost().rows()["money"] == "no price; set the price of the device in data/prices.yaml"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# mine\n", "data/prices.yaml: the file is empty. For the format, see "),
        (
            "per_hour: 3\n",
            "data/prices.yaml:1: per_hour is not a key of a price table. Known keys: currency, date, ",
        ),
        (
            "per_device_hour:\n  A100: {usual: 1}\n",
            "data/prices.yaml:2: A100 is not a known device. Nearest: A100-40GB, A100-80GB, A100-PCIe-40GB.",
        ),
        (
            "per_device_hour:\n  H100: 3\n",
            "data/prices.yaml:2: H100 must be a mapping with low, usual, high: prices per device and hour.",
        ),
        (
            "per_device_hour:\n  H100: {low: null}\n",
            "data/prices.yaml:2: H100 has no price. Set usual, or set low and high.",
        ),
        (
            "per_device_hour:\n  H100: {usual: -1}\n",
            "data/prices.yaml:2: H100.usual = -1 must be a number above 0, in the table's currency.",
        ),
        (
            "per_device_hour: 5\n",
            "data/prices.yaml:1: per_device_hour = 5 must be a mapping from devices to their prices.",
        ),
        (
            "per_device_hour: [1]\n",
            "data/prices.yaml:1: per_device_hour = [1] must be a mapping from devices",
        ),
        (
            "per_device_hour:\n  H100: {low: 3, high: 1}\n",
            "data/prices.yaml:2: H100.low = 3 is more than H100.high = 1. Swap the two values.",
        ),
        ("per_kwh: free\n", "data/prices.yaml:1: per_kwh = 'free' must be a number above 0, in the"),
        ("date: 5\n", 'data/prices.yaml:1: date = 5 is not text. Write the value in quotes, e.g. "2026-05".'),
    ],
)
def test_broken_tables(text, message):
    """An invalid price table is an error that states the file, the line, the invalid value, and valid
    ones.
    """
    write(text)
    with pytest.raises(ConfigError) as caught:
        read_prices()
    assert str(caught.value).startswith(message)


def test_the_plan_names_what_a_rank_sends():
    """The plan lists what a rank sends in a step: with ZeRO 2 on 4 ranks, four reduce-scatters of fp32
    gradients and one all-gather.
    """
    shown = plan(load("gpt-125m-4xdp"), use_measured=False).sections()["Time"]
    assert shown["traffic"].startswith("sent by one rank per step: data ")
    assert "traffic" not in plan(load("gpt-125m"), use_measured=False).sections()["Time"]
