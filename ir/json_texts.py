"""JSON that users hand us, with words for what is wrong with it."""

from __future__ import annotations

import json

from shardwright.ir.diagnostics import NOWHERE, Source, Span, fault, located


def json_of(name: object, data: bytes | str, code: str, *notes: str) -> object:
    """The value of a JSON text of this name; bytes are UTF-8. Raises a `DiagnosticError` with this code where it is
    none, with the place in the text."""
    span, text = NOWHERE, ""
    try:
        text = data.decode("utf-8-sig") if isinstance(data, bytes) else data
        return json.loads(text)
    except UnicodeDecodeError:
        reason = "this is not a text file in UTF-8"
    except json.JSONDecodeError as error:
        span = Span(error.lineno, error.colno, error.lineno, error.colno + 1)
        reason = f"not JSON: {error.msg.lower()}"
    except RecursionError:
        reason = "not JSON that can be read: it is nested too deeply"
    except ValueError:
        reason = "not JSON that can be read: a number has thousands of digits"
    with located(Source(str(name), text)):
        raise fault(code, reason, span, *notes)


def shown(value: object) -> str:
    """A value as JSON, cut where it is long."""
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."
