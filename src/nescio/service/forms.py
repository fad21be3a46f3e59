"""Files in a multipart form, as "curl -F image=@photo.jpg" sends them (RFC 7578).

The body has been read within the limits of the service, so nothing needs to be streamed.
"""

from __future__ import annotations

from email.message import Message
from typing import NamedTuple

from starlette.exceptions import HTTPException

from nescio.errors import FileFormatError

FORM = "multipart/form-data"

MAX_FILES = 100
_MAX_HEADER_BYTES = 8_192  # of one part
_EXAMPLE = "For example: curl -F image=@photo.jpg"


class FormFile(NamedTuple):
    """One file of a form."""

    name: str
    content: bytes


def form_files(content_type: str, body: bytes) -> list[FormFile]:
    """Return the files of a form; raise an error if it holds anything else."""
    boundary = _parameter(content_type, "boundary").encode("latin-1", "replace")
    if not boundary:
        raise FileFormatError(f"the header Content-Type has no boundary. {_EXAMPLE}")
    # The delimiter includes the line break before it; the first one may have none.
    parts = (b"\r\n" + body).split(b"\r\n--" + boundary, MAX_FILES + 2)
    files: list[FormFile] = []
    for part in parts[1:]:  # what comes before the first delimiter is not a part
        if part.startswith(b"--"):  # the closing delimiter
            break
        if len(files) == MAX_FILES:
            raise HTTPException(413, f"the form has more than {MAX_FILES} files.")
        files.append(_file(part))
    else:
        raise FileFormatError("the form in the body is incomplete: it has no closing boundary.")
    if not files:
        raise FileFormatError(f"the form in the body has no file. {_EXAMPLE}")
    return files


def _file(part: bytes) -> FormFile:
    header, separator, content = part.partition(b"\r\n\r\n")
    if not separator or len(header) > _MAX_HEADER_BYTES:
        raise FileFormatError("a part of the form in the body has no valid header.")
    lines = header.decode("utf-8", "replace").split("\r\n")
    fields = (line.partition(":") for line in lines)
    found = {name.strip().lower(): value.strip() for name, _, value in fields}
    disposition = found.get("content-disposition", "")
    if "content-transfer-encoding" in found and found["content-transfer-encoding"] != "binary":
        raise FileFormatError("send the files of a form as they are, without an encoding.")
    field, name = (_parameter(disposition, key) for key in ("name", "filename"))
    if not name:
        raise FileFormatError(
            f"the field {field[:40]!r} of the form is not a file. {_EXAMPLE} (with @)"
        )
    return FormFile(name[:200], content)


def _parameter(header: str, name: str) -> str:
    """Return a parameter of a header, such as the boundary; "" if there is none."""
    message = Message()
    message["content-type"] = header
    value = message.get_param(name, "")
    return value if isinstance(value, str) else value[2]
