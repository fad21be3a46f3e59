"""Files in multipart forms, as curl and browsers send them."""

import numpy as np
import pytest

from nescio.errors import FileFormatError
from nescio.service.requests import TooLargeError, form_files
from nescio.service.settings import MAX_FILES

KIND = "multipart/form-data; boundary=XX"


def part(content, field="image", name="a.jpg", more=""):
    file = f'; filename="{name}"' if name else ""
    return (
        f'--XX\r\nContent-Disposition: form-data; name="{field}"{file}\r\n{more}\r\n'.encode()
        + content
        + b"\r\n"
    )


END = b"--XX--\r\n"


@pytest.mark.parametrize("content", [b"", b"plain", bytes(range(256)) * 3, b"\r\n\r\n--X", b"\n\r"])
def test_the_content_of_a_file_is_left_as_it_is(content):
    body = part(content, more="Content-Type: image/jpeg\r\n") + part(b"2", "other", "b c.png") + END
    expected = [("a.jpg", content), ("b c.png", b"2")]
    assert form_files(KIND, body) == expected
    assert form_files('multipart/form-data; boundary="XX"', body) == expected


@pytest.mark.parametrize(
    ("kind", "body", "reason"),
    [
        ("multipart/form-data", part(b"1") + END, "Missing boundary"),
        (KIND, b"", "no closing boundary"),
        (KIND, part(b"1"), "no closing boundary"),
        (KIND, END, "no file"),
        (KIND, part(b"photo.jpg", name="") + END, "Maximum number of fields is 0"),
        (KIND, b"--XX\r\nno header\r\n" + END, "cannot be read"),
        (KIND, part(b"1", more="A: " + "b" * 9000 + "\r\n") + END, "cannot be read"),
    ],
)
def test_other_forms_are_refused_with_a_reason(kind, body, reason):
    with pytest.raises(FileFormatError, match=reason):
        form_files(kind, body)


def test_the_number_of_files_is_limited():
    assert len(form_files(KIND, part(b"1") * MAX_FILES + END)) == MAX_FILES
    for n in (MAX_FILES + 1, 50 * MAX_FILES):
        with pytest.raises(TooLargeError, match="at most 100 files"):
            form_files(KIND, part(b"1") * n + END)


# --- the service --------------------------------------------------------------------------------


@pytest.fixture
def service(client, detector_file, image_model):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("PIL.Image")
    return client(detector_file(), model=image_model())


def test_each_image_of_a_form_is_a_row(service, encoded_image):
    images = [encoded_image(np.full((9, 7, 3), grey)) for grey in (40, 200)]
    files = [("image", ("dark.png", images[0])), ("file", ("light.png", images[1]))]
    found = service.post("/v1/predict", files=files)
    assert found.status_code == 200, found.text
    assert found.json()["id"] == ["dark.png", "light.png"]
    for at, image in enumerate(images):
        alone = service.post("/v1/predict", content=image, headers={"content-type": "image/png"})
        assert found.json()["logits"][at] == pytest.approx(alone.json()["logits"][0])


def test_a_bad_image_of_a_form_is_named(service, encoded_image):
    good = encoded_image(np.zeros((5, 5, 3)))
    files = [("image", ("good.png", good)), ("image", ("bad.png", b"not an image"))]
    answer = service.post("/v1/predict", files=files)
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith("bad.png: cannot read the image")
