"""Images from tables, and groups of images that stay together."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import SMALL_MODEL, Run, write_images

from vit_train.config.data import DataConfig, FolderConfig, TableConfig
from vit_train.data import folder
from vit_train.data.dataset import Dataset, ImageSet, load_dataset
from vit_train.data.splits import hold_out, make_splits

PHOTOS = [f"{name}/{number}.png" for name in ("cat", "dog") for number in range(6)]


def table(text: str, **settings: object) -> TableConfig:
    write_images("photos", PHOTOS)
    Path("photos/labels.csv").write_text(text, encoding="utf-8")
    chosen = {"file": "photos/labels.csv", "image_size": 8} | settings
    return TableConfig(**chosen)  # type: ignore[arg-type]


def rows(columns: str, lines: Sequence[str]) -> str:
    return "\n".join([columns, *lines]) + "\n"


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_a_table_gives_the_images_of_the_folders_that_it_describes(separator: str) -> None:
    """With its columns in any order, among others, a mark of the byte order, and white space."""
    lines = [
        f"x,{name.split('/')[0]},{'test' if '5' in name else 'train'},{name} " for name in PHOTOS
    ]
    text = "\ufeff\n" + rows("note,label,split,path", lines).replace(",", separator)
    data = load_dataset(table(text))
    folder = load_dataset(FolderConfig(root="photos", image_size=8, test_fraction=1e-9))
    assert data.classes == folder.classes == ("cat", "dog")
    assert data.test.all_names.tolist() == ["cat/5.png", "dog/5.png"]
    found = dict(zip(data.train.all_names, data.train.images, strict=True))
    for name, image in zip(folder.train.all_names, folder.train.images, strict=True):
        assert name not in found or torch.equal(found[name], image)
    assert [data.classes[label] for label in data.train.labels] == [each[:3] for each in found]
    elsewhere = table(text, file=str(Path("photos/labels.csv").absolute()), root="photos")
    assert load_dataset(elsewhere).fingerprint == data.fingerprint


WRONG = {
    "path,split\ncat/0.png,train\n": "has no column label: its first line is path, split\\. Add",
    "path,label,split\ncat/0.png,cat,learning\n": "line 2: the column of the split holds learning",
    "path,label\ncat/0.png,cat\n,dog\n": "line 3: each row needs a path and",
    "path,label\ncat/0.png\n": "line 2: each row",
    "path,label,split\ncat/0.png,cat,test\n": "lists no training images",
    "path,label\n": "lists no images",
    "path,label\ncat/0.png,cat\nno.png,dog\n": "no.png: there is no such file",
    "path,label\ncat/0.png,\ud800": "is not in UTF-8: save it again as",
    "path,label,split\ncat/0.png,cat,\ndog/0.png,dog,val\n": "classes that are not .*: dog",
    **{
        f'path,label,weight\na.png,a,\nb.png,b,"{weight}"\n': f"line 3: weight {weight} "
        "must be a number from 0 to 1,000,000, such as 0.3"
        for weight in ("-1", "nan", "inf", "1e7", "x", "0,5")
    },
    "path,label,split\ncat/0.png,cat,\ndog/0.png,Cat,val\n": "the same .*- 'cat' and 'Cat'",
    "path,label,fold\ncat/0.png,cat,0\ndog/0.png,dog,4\n": "the column of the split holds 0, 4:",
    "path,label,usage\ncat/0.png,cat,Training\n": r"split in the column usage \(Training\)",
    "path,label,x\ncat/0.png,cat,d\ncat/1.png,cat,train\ndog/0.png,dog,test\n": "hold the split in",
    "path,label\ncat/0.png,cat\ncat/0.png,dog\n": "3 lists cat/0.png again, with another label",
    "path,label,split\ncat/0.png,cat,\ncat/0.png,cat,val\n": "line 3 lists cat/0.png again",
    "path,cat,is_train\ncat/0.png,1,1\ncat/1.png,0,1\n": "no column label: ",
    "path,label,is_train\ncat/0.png,cat,1\ncat/1.png,cat,0\n": "hold the split in",
    "path,tags\ncat/0.png,a,b\n": "line 2: there are more cells than columns",
    "cat/0.png,cat,x\ncat/1.png,cat,y\n": "no column label: .* cat/0.png, cat",
    "cat/0.png,0,0\ncat/1.png,1,1\ndog/0.png,2,0\n": "no column label: .* is cat/0.png, 0, 0",
    "age,image_id,d x\n7,0,a\n": r"no column label: .*'data.columns=\[age,path,d_x\]' with label",
    "file_name,text\ncat/0.png,a cat\ndog/0.png,a dog\n": "no column label: ",
    "file_name,Usage\ncat/0.png,Training\ndog/0.png,Training\n": "no column label: ",
    "filename,cat,dog\ncat/0.png,1,x\ncat/1.png,2,1\n": "no column label: .* filename, cat, dog",
    "filename,good\ncat/0.png,1\ndog/0.png,0\n": "no column label: ",
    "filename,cat,dog\ncat/0.png,1,0\ndog/0.png,0,nan\n": "no column label: ",
    "filename,kind,hat,tie\ncat/0.png,cat,1,0\n": "no column label: ",
    "image,label\n0,cat\n": "0: there is no such file\n.* relative to data.root, now photos",
    "image_id,label,mask\n7,cat,cat/0.png\n": "7: there is no such file",
    "": "no column path and no column label: its first line is empty",
    **{
        f"path,tags\ncat/0.png,{cells[0]}\ncat/1.png,{cells[1]}\ndog/0.png,{cells[2]}\n"
        f"dog/1.png,{cells[3]}\n": f"4 different tags, .* but 3 .*: set data.tag_separator={name}"
        for name, cells in {
            "space": ("haze primary", "haze", "primary", "haze road"),
            "comma": ('"haze, primary"', "haze", "primary", '"haze,road"'),
            "semicolon": ("haze; primary", "haze", "primary", "haze;road"),
        }.items()
    },
    "path,label,split,group\ncat/0.png,a,,g\ncat/1.png,a,test,g\n": "group g are in both train and",
}


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize("text", WRONG)
def test_a_table_that_cannot_be_right_is_refused(text: str) -> None:
    config = table("")
    Path(config.file).write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(ValueError, match=f"(?s){WRONG[text]}"):
        load_dataset(config)
    for file, words in (
        ("", "data.file=FILE must name"),
        ("none.csv", "cannot be read as a table"),
        ("/dev/zero", "no regular file of this name"),
    ):
        with pytest.raises(ValueError, match=words):
            load_dataset(TableConfig(file=file))


@pytest.mark.usefixtures("run")
def test_a_column_of_file_names_is_the_path_and_a_repeated_row_counts_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lines = [f"{number},{name},{name[:3]}" for number, name in enumerate(reversed(PHOTOS))]
    data = load_dataset(table(rows("id,photo,label", [*lines, lines[0]])))
    assert sorted([*data.train.all_names, *data.test.all_names]) == sorted(PHOTOS)
    assert "1 row left out (same image and label as an earlier row)" in caplog.text


LAYOUTS = [
    ("train/a train/b TEST/a TEST/b", "class train test a 4 4 b 4 4 all 8 8"),
    ("Training/a Training/b Testing/a Testing/b", "class train test a 4 4 b 4 4 all 8 8"),
    ("training_set/a training_set/b test_set/a", "class train test a 4 4 b 4 0 all 8 4"),
    ("seg_train/a seg_train/b seg_test/b", "class train test a 4 0 b 4 4 all 8 4"),
    ("train/a train/b train_masks/a", "ignored folders next to train/: - root/train_masks"),
    ("bus_stop train_stop/1 train_stop/2", "bus_stop 3 1 train_stop 8 0 all 11 1"),
    ("bus/1 bus/2 train/1 train/2", "root/bus If every folder in data.root= is a class, set data."),
    ("bus train/1 train/2 layout=classes", "bus 3 1 train 8 0 all 11 1"),
    ("bus train test", "If every folder in data.root= is a class, set data.layout=classes"),
    ("bus taxi test", "root/test is read as a class, because it has no folders. If every folder"),
    ("bus train test layout=classes", "bus 3 1 test 4 0 train 4 0 all 11 1"),
    (
        "part1/a part1/b part2/a part2/b",
        "part1, part2 of root hold no images, but",
    ),
    ("a/images b/images", "class train test a 3 1 b 4 0 all 7 1"),
    ("val/a validation/a train/a", "root/val and root/validation could hold the same split"),
    (
        "data/train/a data/train/b data/test/a docs",
        "holds splits: set data.root=root/data",
    ),
    ("data/a data/b layout=classes", "if the folders in root/data are the classes, set data.root="),
    ("data/new/a data/new/b", "class train test a 3 1 b 4 0 all 7 1"),
    ("train/train train/bus test/train", "class train test bus 4 0 train 4 4 all 8 4"),
    ("Cat cat dog", "almost the same names; if they mean one class, use one: - 'Cat' and 'cat'"),
    ("caf\u00e9 cafe\u0301 tea", "class train test café 7 1 tea 4 0 all 11 1"),
]


@pytest.mark.parametrize(("folders", "words"), LAYOUTS)
def test_folders_of_splits_and_of_classes_are_distinguished(
    run: Run, folders: str, words: str
) -> None:
    settings = [f"data.{word}" for word in folders.split() if "=" in word]
    places = [word for word in folders.split() if "=" not in word]
    write_images("root", [f"{place}/{number}.png" for place in places for number in range(4)])
    outcome = run("vit-data", "data=folder", "data.root=root", "data.val=none", *settings)
    assert words in outcome.said, outcome.said


def test_classes_in_label_files_are_no_class_folders(run: Run) -> None:
    """In a folder of all images, and in folders of splits."""
    for root in ("all", "parts/train"):
        write_images(f"{root}/images", ["0.png", "1.png"])
        Path(root, "labels").mkdir()
        Path(root, "labels/0.txt").write_text("0 0.5 0.5 1 1\n", encoding="utf-8")
        words = "are in label files: set data=table data.file=FILE"
        run.fails(words, "vit-data", "data=folder", f"data.root={root.partition('/')[0]}")


LISTS = {
    "names: [cat, dog]": "",
    "names: {1: dog, 0: no}": "",
    "names: [[cat], dog]": "must list the names of the classes, one a line",
    "names: &a [*a]": "must list the names of the classes",
    "names: !!python/object/apply:os.mkdir [hacked]": "the number of a class, 0 to 0",
    "nc: 2": "must list the names of the classes",
    "names: [cat]": "labels/1.txt: each line must begin with the number of a class, 0 to 0",
    "{": "must list the names of the classes",
}


@pytest.mark.parametrize("text", LISTS)
def test_a_list_of_classes_is_only_read(run: Run, text: str) -> None:
    """As in YAML, whose "no" is a name here; two more images have no label files."""
    write_images("images", [f"{number}.png" for number in range(4)])
    Path("labels").mkdir()
    for number in range(2):
        Path(f"labels/{number}.txt").write_text(f"{number} 0.5 0.5 1 1\n\n", encoding="utf-8")
    Path("data.yaml").write_text(text, encoding="utf-8")
    command = ["vit-data", "data=table", "data.file=data.yaml", "data.val=none"]
    if LISTS[text]:
        run.fails(LISTS[text], *command)
    else:
        run.says("2 images left out, for lack of a label file", *command)
        data = load_dataset(TableConfig(file="data.yaml", image_size=8))
        found = {
            name: data.classes[label]
            for part in (data.train, data.test)
            for name, label in zip(part.all_names, part.labels, strict=True)
        }
        first = "cat" if "cat" in text else "no"
        assert found == {"images/0.png": first, "images/1.png": "dog"}
    assert not Path("hacked").exists()


def test_tables_of_one_pattern_are_joined_or_left_out(run: Run) -> None:
    """A row may name its split itself. Paths are relative to each table, or to data.root."""
    write_images("photos", [f"{part}/{name}" for part in ("train", "val") for name in PHOTOS])
    for part, text in (("train", "path,label\n"), ("val", "path,label,split\n")):
        lines = [f"{name},{name[:3]}{',test' if part == 'val' else ''}\n" for name in PHOTOS]
        Path(f"photos/{part}/labels.csv").write_text(text + "".join(lines), encoding="utf-8")
        lines = [f"photos/{part}/{name} {name[:3]}\n" for name in PHOTOS]
        Path(f"photos/{part}.txt").write_text("".join(lines), encoding="utf-8")
    Path("photos/classes").mkdir()
    Path("photos/classes/labels.csv").write_text("number,name\n", encoding="utf-8")
    counts = "class train test cat 6 6 dog 6 6 all 12 12"
    table = ["data=table", "data.val=none", "data.file=photos/*/labels.csv"]
    said = run.says(counts, "vit-data", *table).said
    assert "1 table left out" in said
    run.says(counts, "vit-data", *table[:2], "data.file=photos/*.txt", "data.root=.")
    run.fails("no column path", "vit-data", *table[:2], "data.file=photos/classes/*.csv")
    run.fails("nowhere", "vit-data", *table[:2], "data.file=nowhere/*.csv")
    small = [*SMALL_MODEL, "data.image_size=16", "train.max_minutes=1e-9"]
    run.succeeds("vit-train", *table, *small, "train.batch_size=8", "hydra.run.dir=run")
    run.says("labels, test:", "vit-eval", "ckpt=run")
    Path("photos/labels.csv").write_text("path,label\nval/cat/0.png,cat\n", encoding="utf-8")
    run.says("on 1 image", "vit-eval", "ckpt=run", "data.file=photos/labels.csv", "out=new")


def test_columns_have_their_usual_names_and_others_are_named_once(run: Run) -> None:
    write_images("photos", PHOTOS)
    for header, test in (
        ("set;file;Label;path", "Test"),
        ("Is Valid;NOTE;Class;file_name", "True"),
    ):
        lines = [f"{test if '5' in name else ''};x.png;{name[:3]};{name}" for name in PHOTOS]
        Path("photos/labels.csv").write_text(rows(header, lines), encoding="utf-8")
        data = ["vit-data", "data=table", "data.file=photos/labels.csv", "data.val=none"]
        said = run.says("class train test cat 5 1 dog 5 1 all 10 2", *data).said
        assert said.count(f"not used: {header.split(';')[1]}") == 1
    Path("photos/labels.csv").write_text("path,label\n" + PHOTOS[0] + ",Käfer\n", encoding="utf-16")
    run.fails("is not in UTF-8: save it again as “CSV UTF-8”", *data)


PUBLIC = {
    # Roboflow's _classes.csv
    "one column per class": (
        "labels.csv",
        "filename, cat, dog\n"
        + "".join(f"{p}, {p[0] == 'c':d}, {p[0] == 'd':d}\n" for p in PHOTOS),
        {},
    ),
    # Hugging Face's imagefolder
    "JSON lines": (
        "metadata.jsonl",
        "".join(f'{{"file_name": "{p}", "label": "{p[:3]}", "group": null}}\n' for p in PHOTOS),
        {},
    ),
    "JSON with other keys": (
        "labels.jsonl",
        "".join(f'{{"img": "{p}", "cls": "{p[:3]}", "size": 3}}\n' for p in PHOTOS),
        {"columns": ["path", "label", "_"]},
    ),
    "a JSON array": (
        "labels.json",
        json.dumps([{"image": p, "label": p[:3]} for p in PHOTOS]),
        {},
    ),
    # Kaggle
    "ids": ("labels.csv", "id,label\n" + "".join(f"{p[:-4]},{p[:3]}\n" for p in PHOTOS), {}),
    "ids beside masks": (
        "labels.csv",
        "id,label,mask\n" + "".join(f"{p[:-4]},{p[:3]},{p[:-4]}_mask.png\n" for p in PHOTOS),
        {},
    ),
    "labels first": ("labels.csv", "".join(f"{p[:3]},{p}\n" for p in PHOTOS), {}),
    # lists such as train.txt
    "a list": (
        "train.txt",
        "".join(f"{p}  {p[:3]}\n" for p in PHOTOS),
        {"columns": ["path", "label"]},
    ),
}


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize("layout", PUBLIC)
def test_a_public_layout_of_a_table_is_read(layout: str) -> None:
    name, text, settings = PUBLIC[layout]
    config = table("", file=f"photos/{name}", test_fraction=1e-9, **settings)
    Path(config.file).write_text(text, encoding="utf-8")
    data = load_dataset(config)
    folder = load_dataset(FolderConfig(root="photos", image_size=8, test_fraction=1e-9))
    names = data.train.all_names.tolist()
    order = [folder.train.all_names.tolist().index(name) for name in names]
    assert data.classes == folder.classes and len(names) + len(data.test) == len(PHOTOS)
    assert torch.equal(data.train.labels, folder.train.labels[order])


@pytest.mark.usefixtures("run")
def test_paths_name_splits_only_with_training_images_and_without_a_column_split() -> None:
    """A folder of all paths names none. That of the table may have brackets, as patterns have."""
    places = ("train/a", "test/b", "test/c")
    write_images("photos[1]", [f"{place}.png" for place in places])
    for header, form, test in (
        ("path,label", "{place}.png,cat", ["test/b.png", "test/c.png"]),
        ("path,label,split", "{place}.png,cat,", None),
        ("path,label", "train/../{place}.png,cat", [f"train/../test/{name}.png" for name in "bc"]),
        ("path,label", "{place}.png,cat", None),
    ):
        last = test is None and header == "path,label" and form.startswith("{")
        lines = [form.format(place=place) for place in places[last:]]
        Path("photos[1]/labels.csv").write_text(rows(header, lines), encoding="utf-8")
        data = load_dataset(TableConfig(file="photos[1]/labels.csv", image_size=8))
        names = [name.removeprefix("photos[1]/") for name in data.test.all_names]
        assert names == test if test else len(names) == 1


@pytest.mark.usefixtures("run")
def test_an_id_that_fits_two_files_is_refused() -> None:
    config = table("id,label\ncat/0,cat\ndog/0,dog\n")
    Path("photos/cat/0.tif").touch()
    with pytest.raises(ValueError, match=r"cat/0 may be 0\.png or 0\.tif: write the suffix"):
        load_dataset(config)


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize("label", ['["cat"]', '{"name": "cat"}'])
def test_a_label_that_is_no_single_class_is_refused(label: str) -> None:
    config = table("", file="photos/labels.jsonl")
    Path(config.file).write_text(f'{{"path": "cat/0.png", "label": {label}}}\n', encoding="utf-8")
    with pytest.raises(ValueError, match="label must be one class; a list of tags must"):
        load_dataset(config)


@pytest.mark.usefixtures("run")
def test_columns_of_classes_give_tags_if_an_image_is_of_any_number_of_classes() -> None:
    """As in tables of attributes, with −1 for no."""
    lines = [f"{PHOTOS[0]},1,1", f"{PHOTOS[1]},-1,-1", f"{PHOTOS[2]},-1,1"]
    data = load_dataset(table(rows("image_id,Hat,Smiling", lines), test_fraction=1e-9))
    marks = {
        name: labels.tolist()
        for part in (data.train, data.test)
        for name, labels in zip(part.all_names, part.labels, strict=True)
    }
    assert data.classes == ("Hat", "Smiling")
    assert marks == {PHOTOS[0]: [1, 1], PHOTOS[1]: [0, 0], PHOTOS[2]: [0, 1]}


@pytest.mark.usefixtures("run")
def test_tag_separator_is_respected() -> None:
    lists = ("['a', 'b']", "['a']", "[]", "['b', 'c']")
    lines = [f'{name},"{lists[number % 4]}"' for number, name in enumerate(PHOTOS)]
    assert load_dataset(table(rows("path,tags", lines), tag_separator="comma")).classes == tuple(
        "abc"
    )
    cars = ("red car", "blue car", "red bus", "blue bus", "green car", "green bus")
    lines = [f"{name},{cars[number % 6]}" for number, name in enumerate(PHOTOS)]
    assert len(load_dataset(table(rows("path,tags", lines), tag_separator="bar")).classes) == 6


@pytest.mark.usefixtures("run")
def test_a_table_gives_each_image_its_tags() -> None:
    """Also none; and the validation images get their share of a rare tag."""
    lines = [f"{PHOTOS[0]},b | a ,train", f"{PHOTOS[1]},,train", f"{PHOTOS[2]},b|,test"]
    data = load_dataset(table(rows("path,tags,split", lines)))
    assert data.classes == ("a", "b") and data.test.label_names(data.classes) == ["b"]
    assert torch.equal(data.train.labels, torch.tensor([[1.0, 1.0], [0.0, 0.0]]))
    labeled = load_dataset(table(rows("path,tags,split,label", [f"{line},cat" for line in lines])))
    assert labeled.classes == data.classes
    assert data.train.class_counts(2) == [1, 1]
    with pytest.raises(ValueError, match=r"has tags that are not tags of the training images: c\."):
        load_dataset(table(rows("path,tags,split", [*lines, f"{PHOTOS[3]},b|c,test"])))
    with pytest.raises(ValueError, match="has no tags for training images"):
        load_dataset(table(rows("path,tags,split", lines[1:])))

    often, rare = torch.arange(200) % 2 == 0, torch.arange(200) % 25 == 0
    labels = torch.stack((often, rare, torch.arange(200) % 4 == 1), dim=1).float()
    images = ImageSet(torch.zeros(200, 3, 1, 1, dtype=torch.uint8), labels)
    _, apart = hold_out(images, "val_fraction", DataConfig(val_fraction=0.25))
    assert apart.labels.sum(0).tolist() == pytest.approx([25, 2, 12.5], abs=1.5)


@pytest.mark.usefixtures("run")
def test_the_first_of_two_columns_with_one_name_is_used() -> None:
    lines = [f"{name},{name[:3]},z" for name in PHOTOS]
    assert "z" not in load_dataset(table(rows("path,label,label", lines))).classes


@pytest.mark.usefixtures("run")
def test_nothing_is_decoded_if_a_file_of_a_table_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(folder, "decode", lambda *_: pytest.fail("decoded"))
    lines = [f"{name},{name[:3]}" for name in (*PHOTOS, "cat/missing.png")]
    with pytest.raises(ValueError, match="there is no such file"):
        load_dataset(table(rows("path,label", lines)))


@pytest.mark.usefixtures("run")
def test_images_decoded_at_once_must_fit_even_if_they_are_cached() -> None:
    write_images("photos", PHOTOS)
    huge = FolderConfig(root="photos", image_size=10**6, cache=True)
    with pytest.raises(ValueError, match="of memory, but this machine has"):
        load_dataset(huge)


@pytest.mark.usefixtures("run")
def test_groups_come_from_the_table_or_from_the_names_of_files() -> None:
    lines = [f"{name},{name[:3]},{name[-5]}" for name in PHOTOS]
    data = load_dataset(table(rows("path,label,patient", lines), group_by="patient"))
    assert data.train.groups is not None and data.test.groups is not None
    assert data.train.groups.tolist() == [name[-5] for name in data.train.all_names]
    assert not {*data.train.groups} & {*data.test.groups} and len(data.test) == 2
    some = [f"{name},{name[:3]},{'twins' if name[-5] in '01' else ''}" for name in PHOTOS]
    twins = load_dataset(table(rows("path,label,group", some)))
    assert len({*twins.train.groups, *twins.test.groups}) == 9  # type: ignore[misc]
    absolute = str(Path("photos/labels.csv").absolute())
    elsewhere = load_dataset(table(rows("path,label,group", some), file=absolute, root="photos"))
    assert elsewhere.fingerprint == twins.fingerprint
    for part, own in (
        ("train", rows("path,label,group", some[:9])),
        ("training", f"path,label\n{PHOTOS[9]},cat\n"),
    ):
        Path(f"photos/{part}.csv").write_text(own, encoding="utf-8")
    joined = load_dataset(table("", file="photos/**/train*.csv"))
    assert joined.train.groups is not None, "of the tables, only one has groups"
    # A column without a name, such as pandas writes, is not a group.
    assert load_dataset(table(rows("path,label,", lines), group_by=None)).train.groups is None
    folder = FolderConfig(root="photos", image_size=8, group_by=r"\d")
    assert load_dataset(folder).test.all_names.tolist() == data.test.all_names.tolist()
    for pattern in ("patient", r"\d*"):
        with pytest.raises(ValueError, match=r"matches no part of cat/0\.png"):
            load_dataset(replace(folder, group_by=pattern))
    with pytest.raises(ValueError, match="is not a regular expression"):
        load_dataset(replace(folder, group_by="("))
    with pytest.raises(ValueError, match=r"labels.csv has no column patient\(s\)"):
        load_dataset(table(rows("path,label,patient", lines), group_by="patient(s)"))


@pytest.mark.usefixtures("run")
def test_the_weighted_labels_of_an_image_are_never_divided() -> None:
    lines = [f"{name},{label},train,0.5" for name in PHOTOS for label in ("cat", "dog")]
    config = table(rows("path,label,split,weight", lines), val_fraction=0.3)
    splits = make_splits(load_dataset(config), config)
    names = splits.named("val").all_names
    assert len(names) == 2 * len({*names}) and not {*names} & {*splits.train.all_names}


def grouped(sizes: Sequence[int]) -> ImageSet:
    groups = np.repeat(np.arange(len(sizes)).astype(object), sizes)
    order = np.random.default_rng(0).permutation(len(groups))
    labels = torch.from_numpy(groups.astype(int) % 3)
    numbers = torch.arange(len(groups)).view(-1, 1, 1, 1)
    return ImageSet(numbers, labels, groups=groups).subset(torch.from_numpy(order))


def test_a_group_is_on_one_side_of_every_split_and_fold() -> None:
    images = grouped(np.random.default_rng(0).integers(1, 9, 40).tolist())
    assert images.groups is not None
    for seed in range(5):
        rest, apart = hold_out(
            images, "val_fraction", DataConfig(val_fraction=0.3, split_seed=seed)
        )
        assert not {*rest.groups} & {*apart.groups}  # type: ignore[misc]
        assert 0.2 * len(images) < len(apart) <= 0.3 * len(images)
        assert {*apart.labels.tolist()} == {0, 1, 2}
    seen = []
    for fold in range(4):
        config = DataConfig(cv_folds=4, cv_fold=fold)
        parts = make_splits(Dataset(images, images, ("a", "b", "c")), config)
        assert parts.val is not None and not {*parts.val.groups} & {*parts.train.groups}  # type: ignore[misc]
        seen += parts.val.images.flatten().tolist()
    assert sorted(seen) == list(range(len(images)))
    with pytest.raises(ValueError, match="needs at least 41 images or groups"):
        make_splits(Dataset(images, images, ("a",)), DataConfig(cv_folds=41, cv_fold=0))
    with pytest.raises(ValueError, match=r"=0\.1 of 5 images leaves no image"):
        hold_out(grouped([5]), "val_fraction", DataConfig())
    for seed in range(9):  # neither the group that is too large nor all images of a class
        config = DataConfig(val_fraction=0.1, split_seed=seed)
        assert len(hold_out(grouped([91, 3, 3, 3]), "val_fraction", config)[1]) == 3
        assert len(hold_out(grouped([3, 3, 3, 91]), "val_fraction", config)[1]) == 3
