"""The one field of a request body the router reads: `model`.

Pure. Nothing else is decoded: msgspec steps over the other values without building objects, so a body of many MB costs
little, and the raw bytes go to the pod untouched. Only when the client used another name than the one the pods
know is the value replaced, and then every other value keeps its bytes.
"""

from __future__ import annotations

import msgspec

from quire_router.errors import BadRequestError


class _Peek(msgspec.Struct):
    model: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_peek = msgspec.json.Decoder(_Peek)
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_string = msgspec.json.Decoder(str)


def model_of(raw: bytes) -> str:
    """The `model` of a JSON body; raise BadRequestError when it is no JSON object or has no usable model."""
    try:
        value = _peek.decode(raw).model
    except msgspec.ValidationError:
        raise BadRequestError("the request body must be a JSON object", code="invalid_json") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequestError(f"the request body is not valid JSON: {error}", code="invalid_json") from None
    except RecursionError:
        raise BadRequestError("the request body is nested too deeply", code="invalid_json") from None
    if value is msgspec.UNSET:
        raise BadRequestError(
            "'model' is missing: name the model that should answer; GET /v1/models lists them",
            code="missing_model",
            param="model",
        )
    try:
        model = _string.decode(value)
    except (msgspec.ValidationError, UnicodeDecodeError):
        model = ""
    if not model:
        raise BadRequestError("'model' must be a string with at least one character", code="bad_model", param="model")
    return model


def rename(raw: bytes, model: str) -> bytes:
    """The same body with another `model`; the other values keep their bytes."""
    fields = _fields.decode(raw)
    fields["model"] = msgspec.Raw(msgspec.json.encode(model))
    return msgspec.json.encode(fields)
