"""How far measured times may be from predicted ones, by where a chip's constants are from."""

from __future__ import annotations

from shardwright.cost.hardware.chips import REFERENCE, Chip, PricedBy

CALIBRATED_ERROR, DATASHEET_ERROR = 0.18, 1.5
"""How far above a predicted time a measured one may be, relative: the worst row of the published tables that the
constants were not fitted on, where the chip's file has no other; and what fitted chips take beyond their datasheets."""

INHERITED_RANGE = (0.9, 1.36)
"""Measured times over predicted ones, the least and the most, in the published rows of chips that inherit constants."""


def expected_error(chip: Chip, priced_by: PricedBy) -> float | None:
    """How far above predicted times measured ones may be, relative, by where the constants are from; None for the
    reference chip, which nobody measures."""
    if chip.name == REFERENCE.name:
        return None
    calibrated = chip.expected_error or CALIBRATED_ERROR
    return {"calibrated": calibrated, "inherited": INHERITED_RANGE[1] - 1, "datasheet": DATASHEET_ERROR}[priced_by]


def error_in_words(chip: Chip, priced_by: PricedBy) -> str:
    """The same as a line; empty where there is nothing to expect."""
    error = expected_error(chip, priced_by)
    if error is None:
        return ""
    if priced_by == "calibrated":
        return f"measured times up to {100 * error:.0f} % above these, the most in published tables not fitted"
    if priced_by == "inherited" and chip.inherited is not None:
        least, most = INHERITED_RANGE
        return (
            f"measured times {least} to {most} times these, as of H100 and H200 in published tables: constants"
            f" inherited from {chip.inherited.chip}, not measured"
        )
    return f"measured times up to {1 + error:g} times these: {chip.name} is priced by its datasheet"


def error_in_brief(chip: Chip, priced_by: PricedBy) -> str:
    """The same in a few words, behind a time; empty where there is nothing to expect."""
    error = expected_error(chip, priced_by)
    if error is None:
        return ""
    if priced_by == "inherited":
        return f"measured {INHERITED_RANGE[0]} to {INHERITED_RANGE[1]} times that"
    return f"measured up to {1 + error:.3g} times that"
