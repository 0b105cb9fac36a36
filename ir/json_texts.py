"""JSON that users hand us, with words for what is wrong with it."""

from __future__ import annotations

import json

from shardwright.ir.diagnostics import NOWHERE, Span, fault


def json_of(data: bytes | str, code: str, *notes: str) -> object:
    """The value of a JSON text; bytes are UTF-8. Raises a `DiagnosticError` with this code where it is none."""
    span = NOWHERE
    try:
        return json.loads(data.decode("utf-8-sig") if isinstance(data, bytes) else data)
    except UnicodeDecodeError:
        reason = "this is not a text file in UTF-8"
    except json.JSONDecodeError as error:
        span = Span(error.lineno, error.colno, error.lineno, error.colno + 1)
        reason = f"line {error.lineno}: not JSON: {error.msg.lower()}"
    except RecursionError:
        reason = "not JSON that can be read: it is nested too deeply"
    except ValueError:
        reason = "not JSON that can be read: a number has thousands of digits"
    raise fault(code, reason, span, *notes)


def shown(value: object) -> str:
    """A value as JSON, cut where it is long."""
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."
