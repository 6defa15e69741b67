"""Tests of image files: pixels, folders and tables of them as data sets."""

import hashlib
import io

import numpy as np
import pandas
import pytest
from PIL import Image

from tff_shift import memory
from tff_shift.data import dataset as dataset_lib
from tff_shift.data import datasets
from tff_shift.data.shifts import evolving
from tff_shift.data.shifts import guidance
from tff_shift.data.your_own import image_files
from tff_shift.data.your_own import own_datasets


def encoded(pixels, mode=None, kind="png", **options):
  """Encodes rows of pixels as a file."""
  image = Image.fromarray(np.array(pixels, np.uint8))
  file = io.BytesIO()
  (image if mode is None else image.convert(mode)).save(file, kind, **options)
  return file.getvalue()


def read(*contents, **options):
  named = ((f"{n}.png", content) for n, content in enumerate(contents))
  return image_files.read(named, len(contents), **options)


@pytest.fixture
def write(tmp_path):
  """Returns `write(name, pixels)`, which writes an image below a folder."""

  def write(name, pixels=((1, 2), (3, 4)), **options):
    path = tmp_path / "pictures" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(pixels, bytes):
      path.write_bytes(pixels)
    else:
      Image.fromarray(np.array(pixels, np.uint8)).save(path, **options)
    return path

  return write


@pytest.fixture
def named(tmp_path):
  """Returns `named(**options)`, the name of the folder as a data set."""

  def named(folder="pictures", **options):
    name = str(tmp_path / folder)
    return own_datasets.table_name(name, options) if options else name

  return named


class TestPixels:
  @pytest.mark.parametrize("kind", ["png", "bmp", "ppm", "tiff"])
  def test_colours_and_grays_are_those_of_the_file(self, kind):
    colours = [[[1, 2, 3], [4, 5, 6]]]
    x = read(encoded(colours, kind=kind))
    assert (x.dtype, x.tolist()) == (np.uint8, [colours])
    assert read(encoded([[7, 8]], kind=kind)).tolist() == [[[[7], [8]]]]

  def test_even_gray_survives_jpeg(self):
    assert np.all(read(encoded(np.full((8, 8), 128), kind="jpeg")) == 128)

  def test_grays_beside_colours_become_colours(self):
    x = read(encoded([[7]]), encoded([[[1, 2, 3]]]), encoded([[9]]))
    assert x[:, 0, 0].tolist() == [[7, 7, 7], [1, 2, 3], [9, 9, 9]]

  @pytest.mark.parametrize(("mode", "pixel"), [("1", [255]), ("P", [255] * 3)])
  def test_bits_are_gray_and_palettes_are_colours(self, mode, pixel):
    assert read(encoded([[255]], mode)).tolist() == [[[pixel]]]

  def test_resized_pixels_are_weighted_by_distance(self):
    # A triangle over the centres 1.5, 2.5 and 3.5 around 3: weights 1, 3, 3.
    x = read(encoded([[0, 0, 0, 70]] * 4), encoded([[7]]), image_size=2)
    assert x[0, :, :, 0].tolist() == [[0, 30], [0, 30]]
    assert np.all(x[1] == 7)

  def test_orientation_of_cameras_is_applied(self):
    exif = Image.Exif()
    exif[0x0112] = 6  # Shown turned clockwise by 90 degrees.
    x = read(encoded([[1, 2]], exif=exif))
    assert x.tolist() == [[[[1]], [[2]]]]

  def test_opaque_alpha_is_dropped(self):
    assert read(encoded([[[1, 2, 3, 255]]])).tolist() == [[[[1, 2, 3]]]]
    assert read(encoded([[9]], "LA")).tolist() == [[[[9]]]]

  @pytest.mark.parametrize(
    ("contents", "message"),
    [
      ([b"no"], "0.png is not an image of a known format"),
      ([encoded(np.eye(50))[:-30]], "0.png cannot be read as an image ("),
      ([encoded([[[1, 2, 3, 9]]])], "0.png has transparent pixels; paste it"),
      ([encoded([[5]], transparency=5)], "0.png has transparent pixels"),
      ([encoded([[1]], "I;16")], "0.png has pixels of Pillow's mode I;16; "),
      (
        [encoded([[1]], save_all=True, append_images=[Image.new("L", (1, 1))])],
        "0.png has 2 frames; one is wanted",
      ),
      (
        [encoded([[1, 2]]), encoded([[1], [2]])],
        "1.png has 1x2 pixels and 0.png has 2x1; image_size=32, for example,",
      ),
    ],
  )
  def test_what_would_be_read_wrongly_is_refused(
    self, contents, message, refusal
  ):
    assert refusal(read, *contents).startswith(message)

  def test_more_than_the_memory_is_refused(self, monkeypatch, refusal):
    monkeypatch.setattr(memory, "limit", lambda: 5)
    assert refusal(read, *[encoded([[1, 2]])] * 3).startswith(
      "3 images of 2x1 pixels, as 0.png has, are one array; image_size makes"
      " them smaller: this would need 6 bytes of memory, but only 5 bytes are"
    )
    assert read(*[encoded([[1, 2]])] * 3, image_size=1).shape == (3, 1, 1, 1)


class TestFolder:
  def test_folders_are_classes(self, write, named):
    for place, name in enumerate(["cat/2.png", "cat/10.PNG", "ant/1.jpg"]):
      write(name, np.full((8, 8), 64 * place))
    for ignored in (".DS_Store", "cat/Thumbs.db", ".git/config"):
      write(ignored, b"")
    loaded = datasets.load(named())
    # By path; "10" is before "2".
    assert loaded.x[:, 0, 0, 0].tolist() == [128, 64, 0]
    assert loaded.y.tolist() == [0, 1, 1]
    assert loaded.class_names == ("ant", "cat")
    assert datasets.get(named()).evolution is None

  @pytest.mark.parametrize(
    ("written", "order"),
    [
      (["d10", "d9", "d1a"], ["d1a", "d9", "d10"]),
      (["15", "-30", "0.5"], ["-30", "0.5", "15"]),
      (["2013-10", "2013-9", "2012-11"], ["2012-11", "2013-9", "2013-10"]),
    ],
  )
  def test_order_of_domains_is_natural(self, write, named, written, order):
    for domain in written:
      for label in "ab":
        write(f"{domain}/{label}/1.png", [[order.index(domain)]])
    levels = {"folder_levels": "domain,class"}
    loaded = evolving.load_evolving(named(**levels))
    assert [each.name for each in loaded.domains] == order
    assert [each.x.max() for each in loaded.domains] == [0, 1, 2]
    turned = evolving.load_evolving(
      named(**levels, domain_order=",".join(order[::-1]))
    )
    assert [each.name for each in turned.domains] == order[::-1]
    assert [each.x.max() for each in turned.domains] == [2, 1, 0]

  def test_clients_have_domains_and_may_lack_classes(self, write, named):
    for name in ("n10/1/a", "n9/1/a", "n9/2/b", "n9/1/b"):
      write(f"{name}/x.png")
    loaded = datasets.load(named(folder_levels="client,domain,class"))
    assert loaded.client_names == ("n9", "n10")
    # By path: n10/1/a, n9/1/a, n9/1/b, n9/2/b.
    assert loaded.client.tolist() == [1, 0, 0, 0]
    assert loaded.time.tolist() == [0, 0, 0, 1]
    assert loaded.y.tolist() == [0, 0, 1, 1]

  def test_digest_and_data_follow_the_files(self, write, named):
    contents = [encoded([[1]]), encoded([[2]])]
    for label, content in zip("ab", contents, strict=True):
      write(f"{label}/x.png", content)
    name = named()
    first = own_datasets.checksum(name)
    assert (
      first
      == hashlib.sha256(
        b"".join(
          b"%c/x.png %d %b" % (label, len(content), content)
          for label, content in zip(b"ab", contents, strict=True)
        )
      ).hexdigest()
    )
    write("b/x.png", encoded([[3]]))
    assert own_datasets.checksum(name) != first
    assert datasets.load(name).x.ravel().tolist() == [1, 3]
    assert own_datasets.short_name(name) == "pictures"

  @pytest.mark.parametrize(
    ("names", "options", "message"),
    [
      ("a/x.txt", {}, "{}/a/x.txt is not an image (.png, "),
      ("a/x.png b/", {}, "{}/b is empty; a folder of a class must have"),
      ("", {}, "{} has no images (.png, "),
      ("x.png", {}, "{}/x.png lies 0 folders deep, and <class>/<image> is"),
      (
        "d/a/x.png",
        {},
        "{}/d/a/x.png lies 2 folders deep; folder_levels must say what they"
        " are, such as domain,class or client,class",
      ),
      (
        "a/x.png b/c/x.png",
        {"folder_levels": "class"},
        "{}/b/c/x.png lies 2 folders deep, and <class>/<image> is wanted",
      ),
      ("a/b/c/d/x.png", {}, "{}/a/b/c/d: folders may be 3 deep (client, "),
      (
        "1/a/x.png 1/b/x.png 2/a/x.png",
        {"folder_levels": "domain,class"},
        "{}: domain '2' has no folder of class 'b'; if it has no such example",
      ),
      (
        "a/x.png b/x.png",
        {"folder_levels": "domain"},
        "folder_levels=domain: it must have class, and may have client and",
      ),
      (
        "1/a/x.png 1/b/x.png 2/a/x.png 2/b/x.png",
        {"folder_levels": "domain,class", "domain_order": "2"},
        "{}: domain_order=2: it must have each value of 'domain' once: 1, 2",
      ),
      (
        "a/x.png b/x.png",
        {"domain_order": "b,a"},
        "{}: domain_order: there are no domains to order",
      ),
      ("a/x.png b/x.png", {"image_size": "x"}, "--image_size=x: it must be a"),
      ("a/x.png b/x.png", {"label": "x"}, "{}: label is not one of its opti"),
    ],
  )
  def test_what_is_wrong_is_named(
    self, write, named, tmp_path, refusal, names, options, message
  ):
    (tmp_path / "pictures").mkdir()
    for name in names.split():
      if name.endswith("/"):
        (tmp_path / "pictures" / name).mkdir()
      else:
        write(name, encoded([[1]]))
    told = refusal(datasets.load, named(**options))
    assert told.startswith(message.format(named()))

  def test_missing_folder_and_unused_domains_are_refused(self, write, named):
    with pytest.raises(
      dataset_lib.DatasetNotFoundError, match="no such folder"
    ):
      datasets.get(named())
    for name in ("1/a", "1/b", "2/a", "2/b"):
      write(f"{name}/x.png")
    with pytest.raises(ValueError, match="leave --time or the level domain ou"):
      guidance.load_guidance(
        named(folder_levels="domain,class"),
        num_clients=2,
        partition="2_spc",
        seed=0,
      )


class TestTable:
  FILES = ("u/1/a/x.png", "u/2/b/x.png", "v/1/a/x.png", "v/2/b/y.png")

  def test_table_is_the_folder_bit_for_bit(self, write, named):
    for place, name in enumerate(self.FILES):
      write(name, [[[place, 2, 3], [4, 5, 6]]])
    parts = [name.split("/") for name in self.FILES]
    table = pandas.DataFrame(parts, columns=["site", "year", "y", "file"])
    table = table.assign(file=self.FILES, split=None)
    table.to_csv(named("pictures/metadata.csv"), index=False)
    by_table = datasets.load(
      named(
        "pictures/metadata.csv",
        **{"label": "y", "image": "file", "client": "site", "time": "year"},
      )
    )
    (write("metadata.csv", b"")).unlink()
    by_folder = datasets.load(named(folder_levels="client,domain,class"))
    assert by_table.x.tobytes() == by_folder.x.tobytes()
    for one, other in zip(by_table[1:], by_folder[1:], strict=True):
      np.testing.assert_array_equal(one, other)

  @pytest.mark.parametrize(
    ("text", "options", "message"),
    [
      ("x.png,0", {}, "{folder}/x.png cannot be read: No such file or direc"),
      (",0", {}, "{path}: image='file' must have the paths of files, got nan"),
      ("a/1.png,0", {"image": "fil"}, "{path}: image='fil' is not a column"),
      ("a/1.png,0", {"image": "y"}, "{path}: label='y' has another role too"),
      (
        "a/1.png,0",
        {"image": "", "image_size": "8"},
        "{path}: --image_size needs --image, the column of the images",
      ),
    ],
  )
  def test_what_is_wrong_is_named(self, write, refusal, text, options, message):
    write("a/1.png")
    path = write("metadata.csv", f"file,y\n{text}\n".encode())
    options = {"label": "y", "image": "file"} | options
    name = own_datasets.table_name(str(path), options)
    told = refusal(datasets.get, name)
    assert told.startswith(message.format(folder=path.parent, path=path))
