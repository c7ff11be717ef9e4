"""The example programs learn: shortened, with the accuracy or the loss that they must reach."""

import xml.etree.ElementTree as ET

import numpy as np
import pytest

from examples import digits, text
from examples.support import execution, loss_plot, smoothed, train
from graphs.zoo.packages import ModelUnavailable


@pytest.fixture(scope="module")
def data() -> digits.Data:
    try:
        return digits.digits()
    except ModelUnavailable as reason:
        pytest.skip(f"the digits are not here: {reason}")


@pytest.mark.parametrize("name, steps, least", [("logistic", 100, 0.93), ("two-layers", 100, 0.93), ("cnn", 60, 0.92)])
def test_digits_are_told_apart(name: str, steps: int, least: float, data: digits.Data) -> None:
    program = digits.PROGRAMS[name]()
    losses, accuracy = digits.run(program, data, program.net.session(), steps)
    assert np.mean(losses[-10:]) < losses[0] / 4
    assert accuracy >= least


def test_the_superoptimized_step_learns_the_same(data: digits.Data) -> None:
    found = []
    for superoptimize in (False, True):
        program = digits.logistic()
        session = program.net.session(execution("egraft:cpu", superoptimize))
        found.append(digits.run(program, data, session, 20)[0])
    np.testing.assert_allclose(found[1], found[0], rtol=1e-4)


def test_a_gpt_learns_text() -> None:
    sample = text.Text.of(text.documentation()[:20_000])
    program = text.gpt(len(sample.characters), text.Sizes(layers=1, width=32, heads=2, context=16, batch=16))
    session = program.net.session()
    feeds = program.feeds(sample.train, np.random.default_rng(0))
    losses = train(session, program.loss, program.update, feeds, 100, "")
    assert losses[0] == pytest.approx(np.log(len(sample.characters)), rel=0.05)  # at first it knows nothing
    assert text.test_bits(program, session, sample, 5) < sample.frequency_bits() - 0.3
    assert text.continued(program, session, sample, "The ", 5).startswith("The ")


def test_a_plot_is_a_drawing() -> None:
    drawn = ET.fromstring(loss_plot({"a": [2.0, 1.0, 0.5], "b": [1.0]}))
    lines = [each.attrib["points"].split() for each in drawn.iter("{http://www.w3.org/2000/svg}polyline")]
    assert [len(each) for each in lines] == [3, 3, 1, 1]
    assert smoothed([1.0, 3.0, 5.0], 2) == [1.0, 2.0, 4.0]
