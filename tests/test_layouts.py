"""Each row of the table of layouts in docs/your_photos.md reads files in that layout."""

import re
import shlex
from pathlib import Path

import pytest
from conftest import Run, write_images
from small_sets import small_mnist

PAGE = Path(__file__).parents[1] / "docs/your_photos.md"
# All images are of one class, in turn cat and dog, but of tags, image 19 has both.
FORMS = [
    {"n": n, "c": ("cat", "dog")[n % 2], "i": n % 2, "hot": f"{1 - n % 2}, {n % 2}"}
    | {"part": "Testing" if n < 4 else "Training"}
    | {"tags": "1, 1" if n == 19 else f"{1 - n % 2}, {n % 2}"}
    | {"signs": "1,1" if n == 19 else ("1,-1", "-1,1")[n % 2]}
    | {"box": "0 .5 .5 1 1\n1 .5 .5 .2 .3\n" if n == 19 else f"{n % 2} .5 .5 1 1\n"}
    for n in range(20)
]


def layouts() -> dict[str, list[str]]:
    """The command of each row of the table."""
    text = PAGE.read_text(encoding="utf-8")
    (table,) = re.findall(r"^\| layout \|.+\n\|[-|]+\n((?:\|.+\n)+)", text, re.M)
    cells = (line.split(" | ") for line in table.splitlines())
    return {name.removeprefix("| "): shlex.split(last.strip(" |`")) for name, _, last in cells}


def each(form: str, count: int = 20) -> list[str]:
    """Fill in the form for each of the first images."""
    return [form.format_map(image) for image in FORMS[:count]]


def table(header: str, form: str, count: int = 20) -> str:
    return "\n".join([*filter(None, [header]), *each(form, count)]) + "\n"


def labels(path: str, form: str = "{i} .5 .5 1 1\n", count: int = 20) -> dict[str, str]:
    return dict(zip(each(path, count), each(form, count), strict=True))


# The images of each class, of which a tenth is held out, and those in official splits.
HELD_OUT = "class train val test cat 8 1 1 dog 8 1 1 all 16 2 2"
TWO = "class train val test cat 9 1 2 dog 9 1 2 all 18 2 4"
THREE = "class train val test cat 10 2 2 dog 10 2 2 all 20 4 4"

FOLDERS = "class folders in folders of splits, with any usual names"
WRAPPED = "the same in a folder that holds nothing else"
GTSRB = "Width,Height,Roi.X1,Roi.Y1,Roi.X2,Roi.Y2,ClassId,Path"
EXCEL = "the same from a spreadsheet: semicolons, tabs, a byte order mark"
YAML = "train: ../train/images\nval: ../valid/images\nnc: 2\nnames: ['cat', 'dog']\n"
CASES: list[tuple[str, list[str], dict[str, str], str]] = [
    (
        "class folders",
        each("flower_photos/{c}/{n}.jpg"),
        {"flower_photos/LICENSE.txt": "CC BY"},
        HELD_OUT,
    ),
    *(
        (
            FOLDERS,
            each(f"brain_tumor_mri/{train}/{{c}}/{{n}}.jpg")
            + each(f"brain_tumor_mri/{test}/{{c}}/{{n}}.jpg", 4),
            {},
            TWO,
        )
        for train, test in (("Training", "Testing"), ("train2017", "val2017"))
    ),
    (
        FOLDERS,
        each("brain_tumor_mri/train/{c}/{n}.jpg")
        + each("brain_tumor_mri/valid/{c}/{n}.jpg", 4)
        + each("brain_tumor_mri/test/{c}/{n}.jpg", 4),
        {},
        THREE,
    ),
    (
        WRAPPED,
        each("cats_and_dogs/PetImages/{c}/{n}.jpg"),
        {"cats_and_dogs/readme[1].txt": "", "cats_and_dogs/__MACOSX/PetImages/._cat": ""},
        HELD_OUT,
    ),
    (
        WRAPPED,
        each("cats_and_dogs/seg_train/seg_train/{c}/{n}.jpg")
        + each("cats_and_dogs/seg_test/seg_test/{c}/{n}.jpg", 4)
        + each("cats_and_dogs/seg_pred/seg_pred/{n}.jpg", 4),
        {},
        TWO,
    ),
    (
        "a table with usual column names",
        each("butterflies/train/Image_{n}.jpg"),
        {"butterflies/Training_set.csv": table("filename,label", "Image_{n}.jpg,{c}")},
        HELD_OUT,
    ),
    *(
        (
            EXCEL,
            each("my_photos/{n}.jpg"),
            {"my_photos/labels.csv": "\ufeff" + text.replace(";", separator)},
            "class train val test cat 7 1 2 dog 7 1 2 all 14 2 4",
        )
        for separator in ";\t"
        for text in [table("file;class;split", "{n}.jpg;{c};{part}")]
    ),
    (
        "ids without extension, and one other column",
        each("dogs/train/{n}.jpg") + each("dogs/test/{n}.jpg"),
        {"dogs/labels.csv": table("id,breed", "{n},{c}")},
        HELD_OUT,
    ),
    (
        "other column names",
        each("ham/images/ISIC_{n}.jpg"),
        {
            "ham/HAM10000_metadata.csv": table(
                "lesion_id,image_id,dx,dx_type,age,sex,localization",
                "HAM_{n},ISIC_{n},{c},histo,80.0,male,scalp",
            )
        },
        HELD_OUT,
    ),
    (
        "no column names",
        each("val/images/val_{n}.JPEG"),
        {"val/val_annotations.txt": table("", "val_{n}.JPEG\t{c}\t0\t32\t44\t62")},
        HELD_OUT,
    ),
    (
        "lists of paths and labels, one for each split",
        [*each("domainnet/clipart/{c}/{n}.jpg"), *each("domainnet/clipart/{c}/9{n}.jpg", 4)],
        {
            "domainnet/clipart_train.txt": table("", "clipart/{c}/{n}.jpg {c}"),
            "domainnet/clipart_test.txt": table("", "clipart/{c}/9{n}.jpg {c}", 4),
        },
        TWO,
    ),
    (
        "a table for each split",
        each("gtsrb/Train/{i}/{n}.png") + each("gtsrb/Test/{n}.png", 4),
        {
            "gtsrb/Train.csv": table(GTSRB, "27,26,5,5,22,20,{i},Train/{i}/{n}.png"),
            "gtsrb/Test.csv": table(GTSRB, "53,54,6,5,48,49,{i},Test/{n}.png", 4),
            "gtsrb/Meta.csv": table("Path,ClassId,ShapeId", "Meta/{n}.png,{i},1", 2),
        },
        "class train val test 0 9 1 2 1 9 1 2 all 18 2 4",
    ),
    (
        "one column for each class, and a table in each split's folder",
        [f"roboflow/{name}" for name in (*each("train/{n}.jpg"), *each("valid/{n}.jpg", 4))]
        + each("roboflow/test/{n}.jpg", 4),
        {
            "roboflow/train/_classes.csv": table("filename, cat, dog", "{n}.jpg, {tags},"),
            "roboflow/valid/_classes.csv": table("filename, cat, dog", "{n}.jpg, {hot}", 4),
            "roboflow/test/_classes.csv": table("filename, cat, dog", "{n}.jpg, {hot}", 4),
            "roboflow/README.roboflow.txt": "",
        },
        "class train val test cat 11 2 2 dog 10 2 2 all 20 4 4",
    ),
    (
        "attributes, 1 or −1",
        each("celeba/img_align_celeba/{n}.jpg"),
        {"celeba/list_attr_celeba.csv": table("image_id,cat,dog", "{n}.jpg,{signs}")},
        "class train val test cat 8 2 1 dog 8 1 1 all 16 2 2",
    ),
    (
        "Hugging Face's imagefolder",
        each("pets/train/{n}.png") + each("pets/test/{n}.png", 4),
        {
            "pets/train/metadata.jsonl": table("", '{{"file_name": "{n}.png", "label": "{c}"}}'),
            "pets/test/metadata.jsonl": table("", '{{"file_name": "{n}.png", "label": "{c}"}}', 4),
        },
        TWO,
    ),
    (
        "the same with one table, whose paths name the splits",
        each("pets/train/{n}.png") + each("pets/test/{n}.png", 4),
        {
            "pets/metadata.csv": table("file_name,label", "train/{n}.png,{c}")
            + table("", "test/{n}.png,{c}", 4)
        },
        TWO,
    ),
    (
        "`images/` and `labels/`, one object per image",
        each("fruit/train/images/{n}.jpg")
        + each("fruit/valid/images/{n}.jpg", 4)
        + each("fruit/test/images/{n}.jpg", 4),
        labels("fruit/train/labels/{n}.txt")
        | labels("fruit/valid/labels/{n}.txt", count=4)
        | labels("fruit/test/labels/{n}.txt", count=4)
        | {"fruit/data.yaml": YAML},
        THREE,
    ),
    (
        "`images/` and `labels/`, several objects per image",
        each("street/images/{n}.jpg"),
        labels("street/labels/{n}.txt", "{box}")
        | {"street/classes.txt": "cat\ndog\n", "street/notes.json": "{}"},
        "class train val test cat 9 1 1 dog 8 1 1 all 16 2 2",
    ),
]


@pytest.mark.parametrize(
    ("row", "images", "texts", "counts"), CASES, ids=[row for row, *_ in CASES]
)
def test_the_command_of_a_layout_reads_it(
    run: Run, row: str, images: list[str], texts: dict[str, str], counts: str
) -> None:
    """As `vit-data`, with the same settings but those of the task."""
    write_images(".", images, size=(8, 8))
    for name, text in texts.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text, encoding="utf-8")
    command, *settings = layouts()[row]
    assert command == "vit-train"
    run.says(counts, "vit-data", *(word for word in settings if not word.startswith("task=")))


def test_a_set_of_torchvision_is_read_by_its_command(run: Run) -> None:
    small_mnist(Path("data"), "FashionMNIST")
    command = layouts()["a data set of torchvision"]
    run.says("Trouser 2 0 1", "vit-data", *command[1:])


def test_each_layout_has_a_case() -> None:
    assert {row for row, *_ in CASES} == layouts().keys() - {"a data set of torchvision"}
