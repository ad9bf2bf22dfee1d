"""From what stands in a file to class indices: by name where names agree, by number otherwise, never by guessing."""

import re
from collections.abc import Sequence

import numpy as np

from jaxcal.cli.console import UserError
from jaxcal.cli.files import abbreviate, nth


def class_indices(
    raw: np.ndarray,
    num_classes: int,
    columns: Sequence[str] | None,
    classes: Sequence[str] | None,
    rows: np.ndarray,
) -> tuple[np.ndarray, list[str], str]:
    """Indices in [0, k) of labels as found in a file.

    The rule, in this order: `classes` names the label of every class in the order of the columns; otherwise labels that
    all equal the column names, or what follows a prefix common to all of these (`p_cat` and `cat`, `p_3` and 3), belong
    to those columns; otherwise labels are the numbers 0 to k - 1 in the order of the columns.

    Args:
        raw: `(n,)` labels: integers, booleans, whole floats or text.
        num_classes: k.
        columns: names of the k columns of predictions, if they have names.
        classes: labels of the k classes in order, if the user named them.
        rows: `(n,)` row numbers in the file, for messages.

    Returns:
        int32 indices `(n,)`, the label of each class, and a sentence that says which label is which class.
    """
    values, first, inverse = np.unique(raw, return_index=True, return_inverse=True)
    texts = [_text(value) for value in values]

    def row_of(text: str) -> str:
        return nth(int(rows[first[texts.index(text)]]))

    places = list(columns) if columns else [f"class {j}" for j in range(num_classes)]
    if classes is not None:
        names = [_text(name) for name in classes]
        if len(names) != num_classes or len(set(names)) != num_classes:
            raise UserError(f"--classes must give {num_classes} different names, one a class, got {','.join(classes)}")
        unknown = [text for text in texts if text not in names]
        if unknown:
            raise UserError(f"{row_of(unknown[0])} has label {unknown[0]!r}, not one of --classes {','.join(names)}")
    else:
        names = _names_in_columns(texts, columns) if columns else None
        if names is None:
            names = _numbers(texts, num_classes, columns, row_of)
    index = np.array([names.index(text) for text in texts], np.int32)[inverse.reshape(-1)]
    spelled = dict(zip(texts, map(str, values), strict=True))
    pairs = [f"{spelled.get(name, name)} = {place}" for name, place in zip(names, places, strict=True)]
    return index, names, f"labels: {abbreviate(pairs)}"


def class_of(label: str, names: Sequence[str]) -> int:
    """Index of the class with this label, as typed by the user."""
    if _text(label) not in names:
        raise UserError(f"--event must be the label of a class, {abbreviate(names)}; got {label!r}")
    return names.index(_text(label))


def _text(value) -> str:
    """One spelling for a label: 3, 3.0, "3", "3.0" and "3.0e+00" are the same, and true is 1."""
    if isinstance(value, np.bool_):
        return str(int(value))
    if isinstance(value, np.floating):
        return str(int(value)) if np.isfinite(value) and value == int(value) else str(value)
    text = str(value).strip()
    if re.fullmatch(r"[+-]?\d+(\.\d*)?([eE][+-]?\d{1,2})?", text) and float(text).is_integer():
        return str(int(float(text))) if "e" in text.lower() else str(int(text.partition(".")[0]))
    return {"false": "0", "true": "1"}.get(text.lower(), text)


# What says that a column holds predictions: `p_cat`, `p10`, `z.cat`, `probability of cat`.
# A point before a digit belongs to the number.
_OF_A_CLASS = re.compile(
    r"(?i)(?:probability of|probability|probs?|proba|preds?|p|z|logits?|scores?|class)(?:[\s_:]+|\.(?!\d)|(?=\d))"
)


def class_names(columns: Sequence[str]) -> list[str]:
    """Names of the columns without what says that they hold predictions, if that is the same for all of them."""
    starts = {found[0] if (found := _OF_A_CLASS.match(name)) else "" for name in columns}
    prefix = starts.pop() if len(starts) == 1 else ""
    names = [name.removeprefix(prefix) for name in columns]
    return names if all(names) else list(columns)


def _names_in_columns(texts: list[str], columns: Sequence[str]) -> list[str] | None:
    """Column names without the one common prefix under which every label is among them; None if there is none."""
    common = 0
    while all(len(name) > common for name in columns) and len({name[common] for name in columns}) == 1:
        common += 1
    readings = [[_text(name[length:]) for name in columns] for length in range(common + 1)]
    readings = [names for names in readings if len(set(names)) == len(names)]
    fits = [names for i, names in enumerate(readings) if set(texts) <= set(names) and names not in readings[:i]]
    if len(fits) > 1:
        raise UserError(
            f"labels {abbreviate(texts)} match the columns {abbreviate(columns)} in more than one way; "
            "say which label each column stands for with --classes"
        )
    return fits[0] if fits else None


def _numbers(texts, num_classes, columns, row_of) -> list[str]:
    """The labels 0 to k - 1, or a `UserError` that names a label which is neither a number of a class nor a name."""
    numbers = [str(j) for j in range(num_classes)]
    outside = [text for text in texts if text not in numbers]
    if outside and columns:
        unnamed = [text for text in outside if not any(name.endswith(text) for name in columns)] or outside
        raise UserError(
            f"{row_of(unnamed[0])} has label {unnamed[0]!r}, which is not among the columns {abbreviate(columns)}; "
            "name the label of every class with --classes A,B,..."
        )
    if outside:
        number = re.fullmatch(r"[-+.\deE]+|nan", outside[0])
        raise UserError(
            f"{row_of(outside[0])} has label {outside[0]!r}; labels are the integers 0 to {num_classes - 1}"
            + ("" if number else ", or named in order with --classes A,B,...")
        )
    endings = [re.search(r"\d+$", name) for name in columns or ()]
    numbered = [_text(match[0]) for match in endings if match]
    if len(numbered) == num_classes and len(set(numbered)) == num_classes and numbered != numbers:
        # columns p_1, p_2, p_3 with labels 0, 1, 2: by number or by place? Both readings are in use.
        raise UserError(
            f"labels run from 0 to {num_classes - 1} but the columns are {abbreviate(columns)}; "
            f"if they are in this order, add --classes {','.join(numbers)}"
        )
    return numbers
