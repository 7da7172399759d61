"""What schemathesis does to each request before it is sent, so that more of them get past the doors."""
import itertools

import schemathesis

KEYS = itertools.count(1)


@schemathesis.hook
def before_call(context, case, kwargs):
    """Gives each valid `Idempotency-Key` a name of its own, and leaves one of two places for it.

    The same few keys over and over would let through one write, and conflict with it from then on.
    """
    if case.meta and case.meta.generation.mode.is_negative:
        return
    body = case.body if isinstance(case.body, dict) else {}
    headers = case.headers or {}
    in_header, in_body = headers.get("Idempotency-Key"), body.get("idempotency_key")
    if isinstance(in_header, str) and in_header.isprintable() and 0 < len(in_header) <= 128 and " " not in in_header:
        headers["Idempotency-Key"] = f"key-{next(KEYS)}"
    if isinstance(in_body, str) and 0 < len(in_body) <= 128:
        body["idempotency_key"] = headers["Idempotency-Key"] if isinstance(in_header, str) else f"key-{next(KEYS)}"
    # Another tenant's name is refused before anything else is looked at.
    if isinstance(body.get("tenant_id"), str):
        body["tenant_id"] = "default"
