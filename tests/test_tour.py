"""The notebook: what it shows was computed, and can be computed again."""

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

PAGE = Path(__file__).parents[1] / "docs" / "tour.ipynb"


def outputs(notebook: Any) -> list[list[Any]]:
    return [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]


def printed(cell: list[Any]) -> str:
    return "".join(output.get("text", "") for output in cell)


def test_the_page_has_the_results_of_a_whole_run_and_nothing_of_a_machine() -> None:
    notebook = nbformat.read(PAGE, 4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    figures = [output for cell in outputs(notebook) for output in cell if "data" in output]
    assert len(figures) == 3 and all("image/png" in figure.data for figure in figures)
    for cell in outputs(notebook):
        assert not any(output.output_type == "error" for output in cell)
        assert not re.search(r"/(work|tmp|home|root)/|Warning", printed(cell)), printed(cell)


@pytest.mark.tour
@pytest.mark.filterwarnings("default")
def test_a_reader_gets_the_same_answers() -> None:
    """What the model in the box says is the same on every machine; what is trained may differ."""
    notebook = nbformat.read(PAGE, 4)
    before = [printed(cell) for cell in outputs(notebook)]
    place = {"metadata": {"path": str(PAGE.parent)}}
    NotebookClient(notebook, timeout=900, kernel_name="python3", resources=place).execute()
    after = [printed(cell) for cell in outputs(notebook)]
    words = [re.sub(r"[\d.]+ ?%", "", text) for text in after]
    assert words == [re.sub(r"[\d.]+ ?%", "", text) for text in before]
    answers = after[1].splitlines()
    assert len(answers) == 12 and sum(line.startswith("✗") for line in answers) == 1
