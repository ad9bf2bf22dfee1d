"""Calibrators on disk: an npz of plain arrays and one JSON header. Nothing is pickled, nothing read is executed."""

import dataclasses
import json
import math
import os
import pathlib
import struct
import zipfile
import zlib

import jax
import jax.numpy as jnp
import numpy as np

_FORMAT = "jaxcal-calibrator"
_VERSION = 1

# The header of a calibrator is a few hundred bytes; one beyond this is not ours.
_MAX_HEADER_BYTES = 1 << 20

# What the readers of zip, npy and JSON raise on damaged files.
_DAMAGE = (
    zipfile.BadZipFile,
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    OSError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
    struct.error,
    zlib.error,
)


def save(fit, path, classes: dict[str, type]) -> None:
    """Write a fit of one of `classes` to `path`, exactly this name; beside it first, then renamed into place."""
    arrays: dict[str, np.ndarray] = {}
    header = {"format": _FORMAT, "version": _VERSION, "fit": _describe(fit, "fit", arrays, classes)}
    path = pathlib.Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no directory {path.parent} to save {path.name} in")
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(beside, "wb") as file:
            np.savez(file, header=np.frombuffer(json.dumps(header).encode(), np.uint8), **arrays)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def load(path, classes: dict[str, type]):
    """Read what `save` wrote; nothing but a dataclass in `classes` is ever made."""
    with open(path, "rb") as file:
        try:
            return _load(file, os.path.getsize(path), classes)
        except _DAMAGE as error:
            raise ValueError(f"{os.fspath(path)} is not a calibrator saved by jaxcal: {error}") from error


def _load(file, size: int, classes):
    with zipfile.ZipFile(file) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        if sum(info.file_size for info in members.values()) > size:
            raise ValueError("its arrays claim to be larger than the file")
        if "header" not in members or members["header"].file_size > _MAX_HEADER_BYTES:
            raise ValueError("it has no header of a jaxcal calibrator")
        header = json.loads(_read(archive, members["header"]).tobytes())
        if not isinstance(header, dict) or header.get("format") != _FORMAT:
            raise ValueError("its header is not that of a jaxcal calibrator")
        if header.get("version") != _VERSION:
            raise ValueError(f"it has format version {header.get('version')}, this jaxcal reads {_VERSION}")
        return _rebuild(header["fit"], {name: _read(archive, info) for name, info in members.items()}, classes)


def _read(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    """One array of plain numbers, its size checked before it is read."""
    with archive.open(info) as file:
        np.lib.format.read_magic(file)
        shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(file)
        if dtype.kind not in "biuf":
            raise ValueError(f"{info.filename} holds {dtype}, not numbers")
        if file.tell() + math.prod(shape) * dtype.itemsize != info.file_size:
            raise ValueError(f"{info.filename} is said to have shape {shape}, which is not its size")
        return np.frombuffer(file.read(), dtype).reshape(shape, order="F" if fortran_order else "C")


def _describe(value, name: str, arrays: dict[str, np.ndarray], classes):
    if dataclasses.is_dataclass(value):
        cls = type(value).__name__
        if classes.get(cls) is not type(value):
            raise TypeError(f"{cls} cannot be saved; only {', '.join(sorted(classes))} and nestings of them can")
        fields = {
            f.name: _describe(getattr(value, f.name), f"{name}.{f.name}", arrays, classes)
            for f in dataclasses.fields(value)
        }
        return {"class": cls, "fields": fields}
    if isinstance(value, bool | int | float | str) or value is None:
        return {"value": value}
    if not isinstance(value, jax.Array | np.ndarray):
        raise TypeError(f"{name} is a {type(value).__name__}, which cannot be saved")
    array = np.asarray(value)
    bfloat16 = array.dtype == jnp.bfloat16  # npz knows no bfloat16
    arrays[name] = array.view(np.uint16) if bfloat16 else array
    return {"array": name, "dtype": str(array.dtype), "shape": list(array.shape)}


def _rebuild(entry, arrays, classes):
    if "value" in entry:
        return entry["value"]
    if "array" in entry:
        array = arrays[entry["array"]]
        if entry["dtype"] == "bfloat16":
            array = array.view(jnp.bfloat16)
        if list(array.shape) != entry["shape"] or str(array.dtype) != entry["dtype"]:
            raise ValueError(f"array {entry['array']} has shape {array.shape}, its header says {entry['shape']}")
        return jnp.asarray(array)
    cls = classes.get(entry["class"])
    if cls is None:
        raise ValueError(f"it holds a {entry['class']}, unknown to this version")
    names = {f.name for f in dataclasses.fields(cls)}
    if set(entry["fields"]) != names:
        raise ValueError(f"the fields of its {entry['class']} are {sorted(entry['fields'])}, expected {sorted(names)}")
    return cls(**{name: _rebuild(field, arrays, classes) for name, field in entry["fields"].items()})
