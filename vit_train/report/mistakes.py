"""A sheet of the images that a classifier gets most wrong, and of those it doubts most."""

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from vit_train.engine.answers import Answers, Integers
from vit_train.viz.figures import Figure
from vit_train.viz.sheet import GRAY, RIGHT, WRONG, Labelled, class_line, draw_sheet, fitted_end

# Images in each section.
COUNT = 12


def most_wrong(answers: Answers, count: int) -> Integers:
    """Return the wrong answers whose images have the highest loss, the highest first."""
    order: Integers = np.argsort(-answers.losses, kind="stable")
    return order[~answers.correct[order]][:count]


def most_doubtful(answers: Answers, count: int) -> Integers:
    """Return the answers whose two most probable classes are nearest to each other."""
    best = np.sort(answers.log_probabilities, axis=1)[:, ::-1]
    order: Integers = np.argsort(best[:, 0] - best[:, 1], kind="stable")
    return order[:count]


def draw_mistakes(
    answers: Answers, images: Tensor, classes: Sequence[str], names: Sequence[object] = ()
) -> Figure:
    """Draw uint8 images (N,3,S,S), each with its true and its predicted class, and with its file.

    A name that is a number leads to no file, and is left out.
    """
    sections = {
        "Most wrong: the true class got the least probability": most_wrong(answers, COUNT),
        "Least sure: two classes are almost equally probable": most_doubtful(answers, COUNT),
    }
    return draw_sheet(
        {
            title: [
                Labelled(
                    images[index],
                    [*answer_lines(answers, index, classes), *file_line(names[index : index + 1])],
                )
                for index in chosen.tolist()
            ]
            for title, chosen in sections.items()
        }
    )


def file_line(names: Sequence[object]) -> list[tuple[str, str]]:
    """Return a line with the end of the image's name, if it has one, and that is a file's."""
    return [(fitted_end(name), GRAY) for name in names if isinstance(name, str)]


def answer_lines(answers: Answers, index: int, classes: Sequence[str]) -> list[tuple[str, str]]:
    """Return an image's true and predicted class with their probabilities."""
    label, predicted = int(answers.labels[index]), int(answers.predicted[index])
    chances = np.exp(answers.log_probabilities[index])
    color = RIGHT if answers.correct[index] else WRONG
    return [
        class_line("label", classes[label], chances[label]),
        class_line("model", classes[predicted], chances[predicted], color),
    ]
