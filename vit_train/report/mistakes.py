"""A sheet of the images that a classifier gets most wrong, and of those it doubts most."""

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from vit_train.engine.answers import Answers, Integers
from vit_train.viz.figures import Figure
from vit_train.viz.sheet import RIGHT, WRONG, Labelled, class_line, draw_sheet

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


def draw_mistakes(answers: Answers, images: Tensor, classes: Sequence[str]) -> Figure:
    """Draw uint8 images (N,3,S,S), each with its true and its predicted class."""
    sections = {
        "Most wrong: the true class got the least probability": most_wrong(answers, COUNT),
        "Least sure: two classes are almost equally probable": most_doubtful(answers, COUNT),
    }
    return draw_sheet(
        {
            title: [
                Labelled(images[index], answer_lines(answers, index, classes))
                for index in chosen.tolist()
            ]
            for title, chosen in sections.items()
        }
    )


def answer_lines(answers: Answers, index: int, classes: Sequence[str]) -> list[tuple[str, str]]:
    """Return an image's true and predicted class with their probabilities."""
    label, predicted = int(answers.labels[index]), int(answers.predicted[index])
    chances = np.exp(answers.log_probabilities[index])
    color = RIGHT if answers.correct[index] else WRONG
    return [
        class_line("label", classes[label], chances[label]),
        class_line("model", classes[predicted], chances[predicted], color),
    ]
