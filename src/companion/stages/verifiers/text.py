"""A local verifier that reads nothing but the two texts."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from companion.errors import InputError


class Encodes(Protocol):
    """Anything that turns texts into unit vectors, such as ``retrieval.Encoder``."""

    def encode(self, texts: Any, kind: Any = "document") -> NDArray[np.float32]:
        """Return float32 unit vectors, shape (n, d)."""
        ...


class TextPairs:
    """Logistic regression on features of the pair of text embeddings.

    Query vector *u* and memory vector *v* give the features ``|u - v|``, ``u * v`` and their cosine. It is trained on
    the known candidates of the calibration cases and on nothing else. It stands for what can be read from two
    texts by a small model; it has no access to identity, policy or state.
    """

    name = "text_pairs"
    description = "Text only: logistic regression on features of the query and memory embeddings."
    needs: tuple[str, ...] = ()

    def __init__(self, encoder: Encodes | None = None, strength: float = 0.1, folds: int = 4) -> None:
        self._encoder = encoder
        self.strength, self.folds = strength, folds
        self._model: Any = None

    def fit(self, calibration: pd.DataFrame) -> pd.Series:
        """Train on candidates with a known status; return cross-fitted probabilities for all."""
        from sklearn.base import clone
        from sklearn.model_selection import GroupKFold

        known = calibration["violation"].notna().to_numpy()
        target = calibration["violation"].fillna(False).to_numpy(bool)  # only read where `known`
        cases = calibration["query_id"].to_numpy()
        if len(np.unique(target[known])) < 2 or len(np.unique(cases)) < 2:
            raise InputError(f"verifier {self.name}: calibration needs two cases and both statuses to learn from")
        features = self.features(calibration)
        blank = self._blank()
        self._model = clone(blank).fit(features[known], target[known])
        out = np.full(len(calibration), np.nan)
        splits = GroupKFold(min(self.folds, len(np.unique(cases)))).split(features, groups=cases)
        for rest, held in splits:
            rest = rest[known[rest]]
            if len(np.unique(target[rest])) == 2:  # otherwise nothing can be learnt: abstain on this fold
                out[held] = clone(blank).fit(features[rest], target[rest]).predict_proba(features[held])[:, 1]
        return pd.Series(out, index=calibration.index).astype("Float64")

    def probability(self, candidates: pd.DataFrame) -> pd.Series:
        """Apply the trained model."""
        if self._model is None:
            raise InputError(f"verifier {self.name}: not trained yet; calibrate it first")
        values = self._model.predict_proba(self.features(candidates))[:, 1]
        return pd.Series(values, index=candidates.index).astype("Float64")

    def features(self, candidates: pd.DataFrame) -> NDArray[np.float32]:
        """Return the features of every pair: float32, shape (n, 2 d + 1)."""
        u = self._vectors(candidates["query_text"], "query")
        v = self._vectors(candidates["memory_text"], "document")
        product = u * v
        return np.hstack([np.abs(u - v), product, product.sum(axis=1, keepdims=True)])

    def _vectors(self, texts: pd.Series, kind: Any) -> NDArray[np.float32]:
        if self._encoder is None:
            from companion.retrieval import Encoder

            self._encoder = Encoder()
        codes, distinct = pd.factorize(texts)
        return self._encoder.encode(list(distinct), kind=kind)[codes]

    def _blank(self) -> Any:
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        return make_pipeline(StandardScaler(), LogisticRegression(C=self.strength, max_iter=2000))
