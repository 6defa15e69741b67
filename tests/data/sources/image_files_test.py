"""Tests of image files: pixels, folders and tables of them as data sets."""

import hashlib
import io
import itertools
import os
import struct
import zlib

import numpy as np
import pandas
import pytest
from PIL import Image

from tff_shift._util import memory
from tff_shift.data import datasets
from tff_shift.data import sources
from tff_shift.data.shifts import evolving
from tff_shift.data.sources import image_files

EXIF = Image.Exif()
EXIF[0x0112] = 6  # Shown turned clockwise by 90 degrees.
BOTH = "1/a/x.png 2/a/x.png 1/b/x.png"
LEVELS = "folder_levels=domain,class"
TABLE = "/t.csv?label=y"


def encoded(pixels, mode=None, kind="png", **options):
  """Encodes rows of pixels as a file."""
  image = Image.fromarray(np.array(pixels, np.uint8))
  file = io.BytesIO()
  (image if mode is None else image.convert(mode)).save(file, kind, **options)
  return file.getvalue()


def deep_png():
  """Makes a PNG of one pixel of three channels of 16 bits."""

  def chunk(kind, body):
    checksum = struct.pack(">I", zlib.crc32(kind + body))
    return struct.pack(">I", len(body)) + kind + body + checksum

  header = struct.pack(">IIBBBBB", 1, 1, 16, 2, 0, 0, 0)
  pixels = zlib.compress(b"\0" + b"\xff\xff" * 3)
  chunks = (b"IHDR", header), (b"IDAT", pixels), (b"IEND", b"")
  return b"\x89PNG\r\n\x1a\n" + b"".join(itertools.starmap(chunk, chunks))


DEEP_PPM = b"P6 1 1 4095\n" + b"\x0f\xff" * 3


def read(*contents, **options):
  named = ((f"{n}.png", content) for n, content in enumerate(contents))
  return image_files.read(named, len(contents), **options)


@pytest.fixture
def write(tmp_path):
  """Returns `write(names, content)`, which gives the folder of the files."""

  def write(names, content=None):
    (tmp_path / "set").mkdir(exist_ok=True)
    for place, name in enumerate(names.split()):
      path = tmp_path / "set" / name
      path.parent.mkdir(parents=True, exist_ok=True)
      path.write_bytes(encoded([[place]]) if content is None else content)
    return str(tmp_path / "set")

  return write


@pytest.mark.parametrize(
  "content, pixels",
  [
    (encoded([[7, 8]], kind="bmp"), [[[7], [8]]]),
    (encoded([[[1, 2, 3], [4, 5, 6]]]), [[[1, 2, 3], [4, 5, 6]]]),
    (encoded([[128]], kind="jpeg"), [[[128]]]),
    (encoded([[255]], "1"), [[[255]]]),
    (encoded([[255]], "P"), [[[255] * 3]]),
    (encoded([[1, 2]], exif=EXIF), [[[1]], [[2]]]),
    # Alpha that is opaque is dropped.
    (encoded([[[1, 2, 3, 255]]]), [[[1, 2, 3]]]),
    (encoded([[9]], "LA"), [[[9]]]),
  ],
)
def test_pixels_are_those_of_the_file(content, pixels):
  x = read(content)
  assert (x.dtype, x[0].tolist()) == (np.uint8, pixels)


def test_images_of_a_set_get_one_mode_and_size():
  x = read(encoded([[7]]), encoded([[[1, 2, 3]]]), encoded([[9]]))
  assert x[:, 0, 0].tolist() == [[7, 7, 7], [1, 2, 3], [9, 9, 9]]
  # A triangle over the centres 1.5, 2.5 and 3.5 around 3: weights 1, 3, 3.
  x = read(encoded([[0, 0, 0, 70]] * 4), encoded([[7]]), image_size=2)
  assert x[..., 0].tolist() == [[[0, 30], [0, 30]], [[7, 7], [7, 7]]]


@pytest.mark.parametrize(
  "contents, message",
  [
    ([b"no"], "0.png is not an image of a known format"),
    ([encoded(np.eye(50))[:-30]], "0.png cannot be read as an image ("),
    ([encoded([[[1, 2, 3, 9]]])], "0.png has transparent pixels; paste it"),
    ([encoded([[5]], transparency=5)], "0.png has transparent pixels"),
    ([b"%!PS-Adobe-3.0 EPSF-3.0\n"], "0.png is not an image of a known form"),
    ([encoded([[1]], kind="gif")], "0.png is not an image of a known format:"),
    ([deep_png()], "0.png has more than 8 bits per channel; images of 8"),
    ([DEEP_PPM], "0.png has more than 8 bits per channel; images of 8"),
    ([encoded([[1]], "I;16")], "0.png has pixels of Pillow's mode I;16; "),
    ([encoded([[1, 2]]), encoded([[1], [2]])], "1.png has 1x2 pixels and 0."),
    ([encoded(np.eye(2))] * 2, "2 images of 2x2 pixels, as 0.png has, are o"),
  ],
)
def test_wrong_images_are_refused(contents, message, refusal, monkeypatch):
  monkeypatch.setattr(memory, "limit", lambda: 7)
  assert refusal(read, *contents).startswith(message)


def test_folders_are_classes(write):
  write(".DS_Store cat/Thumbs.db .git/config", b"")
  loaded = datasets.load(write("cat/2.png cat/10.PNG ant/1.png"))
  assert loaded.x.ravel().tolist() == [2, 1, 0]
  assert loaded.y.tolist() == [0, 1, 1]
  assert loaded.schema.classes == ("ant", "cat")


@pytest.mark.parametrize(
  "order", ["d1a d9 d10", "-30 0.5 15", "2012-11 2013-9 2013-10"]
)
def test_order_of_domains_is_natural(write, order):
  order = order.split()
  for place, domain in enumerate(order):
    content = encoded([[place]])
    folder = write(f"{domain}/a/1.png {domain}/b/1.png", content)
  for wanted, given in ((order, ""), (order[::-1], ",".join(order[::-1]))):
    loaded = evolving.load_evolving(f"{folder}?{LEVELS}&domain_order={given}")
    assert [each.name for each in loaded.domains] == wanted
    places = [order.index(domain) for domain in wanted]
    assert [each.x.max() for each in loaded.domains] == places


def test_digest_and_data_follow_the_files(write):
  name = write("a/x.png b/x.png")
  files = {"a/x.png": encoded([[0]]), "b/x.png": encoded([[1]])}
  parts = (f"{n} {len(c)} ".encode() + c for n, c in files.items())
  digest = hashlib.sha256(b"".join(parts)).hexdigest()
  assert sources.checksum(name) == digest
  write("b/x.png", encoded([[3]]))
  assert sources.checksum(name) != digest
  assert datasets.load(name).x.ravel().tolist() == [0, 3]
  assert sources.short_name(name) == "set"


@pytest.mark.parametrize(
  "names, options, message",
  [
    ("a/x.txt", "", "{}/a/x.txt is not an image (.png, "),
    ("a/x.png b/.no", "", "{}/b is empty; a folder of a class must have"),
    ("x.png", "", "{}/x.png lies 0 folders deep, and <class>/<image> is"),
    ("d/a/x.png", "", "{}/d/a/x.png lies 2 folders deep; folder_levels must"),
    ("a/x.png b/c/x.png", "folder_levels=class", "{}/b/c/x.png lies 2 fold"),
    ("a/b/c/d/x.png", "", "{}/a/b/c/d: folders may be 3 deep (client, "),
    (BOTH, LEVELS, "{}: domain '2' has no folder of class 'b'; if it has no"),
    (BOTH[:19], f"{LEVELS}&domain_order=2", "{}: domain_order=2: it must hav"),
    ("a/x.png", "folder_levels=domain", "folder_levels=domain: it must have"),
    ("a/x.png", "label=x", "{}: label is not one of its options folder_"),
    ("t.csv", f"{TABLE}&image=file", "{}/x.png cannot be read: No such file o"),
    ("t.csv", f"{TABLE}&image=z", "{}/0 cannot be read: No such file or dire"),
    ("t.csv", f"{TABLE}&image=fil", "{}/t.csv: image='fil' is not a column"),
    ("t.csv", f"{TABLE}&image_size=8", "{}/t.csv: --image_size needs --image"),
  ],
)
def test_wrong_data_sets_are_refused(write, refusal, names, options, message):
  folder = write(names, b"file,z,y\nx.png,0,0" if "csv" in names else None)
  told = refusal(datasets.load, f"{folder}?{options}".replace("?/", "/"))
  assert told.startswith(message.format(folder))


@pytest.mark.parametrize("size", ["0", "4097", "1000000", "9" * 5000, "²"])
def test_image_size_is_bounded(write, refusal, size):
  folder = write("a/x.png b/x.png")
  told = refusal(datasets.load, f"{folder}?image_size={size}")
  assert told.endswith("it must be a number of pixels of at most 4096")


def test_images_of_a_table_that_change_are_read_again(write):
  folder = write("x.png y.png")
  write("t.csv", b"file,label\nx.png,a\ny.png,b\n")
  name = f"{folder}/t.csv?label=label&image=file"
  digest = sources.checksum(name)
  write("x.png", encoded([[77]]))
  assert datasets.load(name).x.ravel().tolist() == [77, 1]
  assert sources.checksum(name) != digest


def test_pipe_in_place_of_an_image_is_refused(write, refusal):
  folder = write("a/x.png b/x.png")
  os.mkfifo(f"{folder}/a/z.png")
  told = refusal(datasets.load, folder)
  assert told.endswith("/a/z.png is a named pipe; it must be a file")


FILES = "n10/1/a/x.png n9/1/a/x.png n9/1/b/x.png n9/2/b/y.png"


def test_table_is_the_folder_bit_for_bit(write, tmp_path):
  folder = write(FILES)
  by_folder = datasets.load(f"{folder}?folder_levels=client,domain,class")
  assert by_folder.client.tolist() == [1, 0, 0, 0]
  assert by_folder.time.tolist() == [0, 0, 0, 1]
  assert by_folder.y.tolist() == [0, 0, 1, 1]
  rows = [[name, *name.split("/")] for name in FILES.split()]
  table = pandas.DataFrame(rows, columns=["file", "site", "year", "y", "_"])
  table["site"] = table["site"].str[1:].astype(int)
  table.to_csv(tmp_path / "set" / "metadata.csv", index=False)
  by_table = datasets.load(
    f"{folder}/metadata.csv?label=y&image=file&client=site&time=year"
  )
  assert by_folder.schema.clients == ("n9", "n10")
  assert by_table.schema.clients == ("9", "10")
  for field in ("x", "y", "client", "time"):
    np.testing.assert_array_equal(
      getattr(by_table, field), getattr(by_folder, field)
    )
