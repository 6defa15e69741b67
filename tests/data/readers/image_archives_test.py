import zlib

import numpy as np
import pytest
import scipy.io
from numpy.testing import assert_allclose
from numpy.testing import assert_array_equal
from PIL import Image

from tff_shift.data.readers import image_archives


def write_image(path, pixels):
  path.parent.mkdir(parents=True, exist_ok=True)
  Image.fromarray(pixels).save(path)
  return path


def write_portrait(folder, name, pixels):
  """Writes a portrait of a gender and name."""
  return write_image(folder / image_archives.PORTRAITS_FOLDER / name, pixels)


def test_portraits_carry_year_and_gender(tmp_path):
  flat = np.full((171, 186), 90, np.uint8)
  half = np.zeros((64, 64, 3), np.uint8)
  half[:, 32:] = 200  # Left half black, right half grey; stored as colour.
  write_portrait(tmp_path, "M/1905_Ohio_Cleveland_Central_0-1.png", flat)
  write_portrait(tmp_path, "F/2013_Texas_Dallas_0-2.png", half)
  write_portrait(tmp_path, "F/1950_Iowa_Ames_0-1.png", flat)
  source = image_archives.portraits(tmp_path)
  assert source.x.shape == (3, 32, 32, 1)
  assert_array_equal(source.time, [1950, 2013, 1905])
  names = [source.schema.classes[y] for y in source.y]
  assert names == ["female", "female", "male"]
  assert np.all(source.x[0] == 90)
  assert np.all(source.x[1, :, :15] == 0)
  assert np.all(source.x[1, :, 17:] == 200)


def _cut(path):
  path.write_bytes(path.read_bytes()[:60])


def _enlarge(path):
  """Makes it claim to be 60,000 pixels wide and high."""
  content = bytearray(path.read_bytes())
  # Width and height, then the checksum of the header.
  content[16:24] = (60_000).to_bytes(4, "big") * 2
  content[29:33] = zlib.crc32(content[12:29]).to_bytes(4, "big")
  path.write_bytes(content)


@pytest.mark.parametrize(
  "name, damage, message",
  [
    ("Ohio_1905.png", lambda _: None, "does not carry its time "),
    ("1905_Ohio.png", _cut, "cannot be read as an image "),
    ("1905_Ohio.png", _enlarge, "cannot be read as an image "),
  ],
)
def test_portrait_that_cannot_be_used_is_named(
  tmp_path, name, damage, message, refusal
):
  pixels = np.random.default_rng(0).integers(0, 255, (8, 8), np.uint8)
  damage(write_portrait(tmp_path, f"F/{name}", pixels))
  told = refusal(image_archives.portraits, tmp_path)
  assert f"{name} {message}" in told


SMALL = np.zeros((8, 8, 3), np.uint8)


def write_caltran(folder, images, labels):
  """Writes images `{stem: array}` and the labels as the archive holds them."""
  archive = folder / "caltran"
  for stem, image in images.items():
    write_image(archive / f"{stem}.jpg", image)
  stems = np.empty((len(images), 1), object)
  stems[:, 0] = list(images)
  path = archive / "caltran_dataset_labels.mat"
  labels = np.array([labels], np.float64)
  scipy.io.savemat(path, {"names": stems, "labels": labels})
  return path


class TestCaltran:
  def test_caltran_carries_hour_and_label(self, tmp_path):
    red, blue = np.zeros((2, 240, 320, 3), np.uint8)
    red[..., 0] = blue[..., 2] = 250
    images = {
      "2013-03-04-23-57": red,
      "2013-03-05-00-03": blue,
      "2013-03-05-14-30": red,
    }
    write_caltran(tmp_path, images, [1, -1, -1])
    source = image_archives.caltran(tmp_path)
    assert source.x.shape == (3, 224, 224, 3)
    assert_array_equal(source.time, [23, 0, 14])
    names = [source.schema.classes[y] for y in source.y]
    assert names == ["car", "no car", "no car"]
    # JPEG keeps a flat colour to within a few levels.
    assert_allclose(source.x[:2, 100, 100], [[250, 0, 0], [0, 0, 250]], atol=5)

  def test_single_image_is_a_data_set_too(self, tmp_path):
    write_caltran(tmp_path, {"2013-03-04-07-00": SMALL}, [1])
    assert_array_equal(image_archives.caltran(tmp_path).time, [7])

  @pytest.mark.parametrize(
    "stems, num_labels, missing, message",
    [
      (["2013-03-04-24-00"], 1, "", "24-00.jpg does not carry its time "),
      (["2013-03-04-0700"], 1, "", "0700.jpg does not carry its time "),
      (
        ["2013-03-04-07-00", "2013-03-04-08-00"],
        1,
        "",
        " holds 2 names and 1 ",
      ),
      (
        ["2013-03-04-07-00"],
        1,
        "2013-03-04-07-00.jpg",
        "00.jpg cannot be read ",
      ),
    ],
  )
  def test_names_that_do_not_fit_are_refused(
    self, tmp_path, stems, num_labels, missing, message, refusal
  ):
    images = dict.fromkeys(stems, SMALL)
    path = write_caltran(tmp_path, images, [1] * num_labels)
    if missing:
      path.with_name(missing).unlink()
    assert message in refusal(image_archives.caltran, tmp_path)

  @pytest.mark.parametrize(
    "content, message",
    [
      ({"labels": np.ones(1)}, "does not hold 'names'"),
      ({"names": np.array(["a"], object)}, "does not hold 'labels'"),
      ({"names": ["a"], "labels": [np.nan]}, "labels that are not finite"),
      ({"names": ["a"], "labels": ["yes"]}, "labels that are not finite"),
      *(
        (damage, "cannot be read as a MATLAB file before version 7.3 (")
        for damage in (
          lambda content: b"",
          lambda content: content[:200],
          lambda content: content[:-9],
          lambda content: b"not MATLAB at all" * 20,
          # What version 7.3 begins with.
          lambda content: content[:124] + b"\x00\x02IM" + content[128:],
        )
      ),
    ],
  )
  def test_wrong_labels_are_refused(self, tmp_path, content, message, refusal):
    path = write_caltran(tmp_path, {"2013-03-04-07-00": SMALL}, [1])
    if callable(content):
      path.write_bytes(content(path.read_bytes()))
    else:
      scipy.io.savemat(path, content)
    told = refusal(image_archives.caltran, tmp_path)
    assert told.startswith(f"{path} ") and message in told


WNIDS = ("n02", "n01", "n03")


def write_tiny_imagenet(folder, annotations=(("val_0.JPEG", "n03"),)):
  """Writes two training images a class, and the validation images.

  Training image i of class c has the grey level 40 c + 20 i. The validation
  images are blue, and the first training image of the first class is stored as
  a grey one.
  """
  archive = folder / image_archives.TINY_IMAGENET_FOLDER
  for label, wnid in enumerate(WNIDS):
    train = archive / "train" / wnid
    for number in range(2):
      level = 40 * label + 20 * number
      shape = (64, 64, 3) if level else (64, 64)
      pixels = np.full(shape, level, np.uint8)
      write_image(train / "images" / f"{wnid}_{number}.JPEG", pixels)
    (train / f"{wnid}_boxes.txt").write_text("not read")
  blue = np.zeros((64, 64, 3), np.uint8)
  blue[..., 2] = 250
  for name, _ in annotations:
    write_image(archive / "val" / "images" / name, blue)
  lines = [f"{name}\t{wnid}\t0\t32\t44\t62\n" for name, wnid in annotations]
  (archive / "val" / "val_annotations.txt").write_text("".join(lines))
  # The test images come without labels.
  write_image(archive / "test" / "images" / "test_0.JPEG", blue)
  (archive / "wnids.txt").write_text("\n".join(WNIDS))
  (archive / "words.txt").write_text(
    "n01\tgoldfish, Carassius auratus\nn00\tentity\nn02\ttailed frog\n"
    "n03\tEuropean fire salamander\n"
  )
  return archive


class TestTinyImagenet:
  def test_splits_follow_each_other_with_labels_by_wnids(self, tmp_path):
    write_tiny_imagenet(
      tmp_path,
      [("val_1.JPEG", "n03"), ("val_0.JPEG", "n01"), ("val_2.JPEG", "n02")],
    )
    source = image_archives.tiny_imagenet(tmp_path)
    assert source.x.shape == (9, 64, 64, 3)
    assert source.num_train == 6
    assert_array_equal(source.y, [0, 0, 1, 1, 2, 2, 2, 1, 0])
    assert source.schema.classes == (
      "tailed frog",
      "goldfish, Carassius auratus",
      "European fire salamander",
    )
    # JPEG keeps a flat colour to within a few levels; grey became RGB.
    greys = [[0] * 3, [20] * 3, [40] * 3, [60] * 3, [80] * 3, [100] * 3]
    assert_allclose(source.x[:6, 32, 32], greys, atol=5)
    assert_allclose(source.x[6:, 32, 32], [[0, 0, 250]] * 3, atol=5)

  @pytest.mark.parametrize(
    "name, text, message",
    [
      ("words.txt", None, "words.txt cannot be read ("),
      ("words.txt", "n01\tgoldfish\nn02\tfrog\n", "does not name n03, "),
      ("words.txt", "n01 fish\n", "words.txt has the line 'n01 fish'; "),
      ("val/val_annotations.txt", None, "annotations.txt cannot be read "),
      (
        "val/val_annotations.txt",
        "val_0.JPEG\tn04\t0\t32\t44\t62\n",
        "gives val_0.JPEG the class n04, ",
      ),
      ("val/images/val_0.JPEG", None, "val_0.JPEG cannot be read as "),
      ("train/n01/images", None, "n01/images holds no *.JPEG; "),
    ],
  )
  def test_archive_that_is_not_whole_is_refused(
    self, tmp_path, name, text, message, refusal
  ):
    path = write_tiny_imagenet(tmp_path) / name
    if text is not None:
      path.write_text(text)
    else:
      for each in [*path.glob("*")] if path.is_dir() else [path]:
        each.unlink()
    assert message in refusal(image_archives.tiny_imagenet, tmp_path)
