"""Calibrators as scikit-learn estimators, around a classifier or on its scores. Needs `pip install jaxcal[sklearn]`."""

from jaxcal.sklearn.calibrator import Calibrator as Calibrator
from jaxcal.sklearn.score_calibrators import BayesianBinning as BayesianBinning
from jaxcal.sklearn.score_calibrators import BetaCalibration as BetaCalibration
from jaxcal.sklearn.score_calibrators import DirichletCalibration as DirichletCalibration
from jaxcal.sklearn.score_calibrators import EnsembleTemperatureScaling as EnsembleTemperatureScaling
from jaxcal.sklearn.score_calibrators import HistogramBinning as HistogramBinning
from jaxcal.sklearn.score_calibrators import IsotonicCalibration as IsotonicCalibration
from jaxcal.sklearn.score_calibrators import MatrixScaling as MatrixScaling
from jaxcal.sklearn.score_calibrators import PlattScaling as PlattScaling
from jaxcal.sklearn.score_calibrators import QuadraticScaling as QuadraticScaling
from jaxcal.sklearn.score_calibrators import ScoreCalibrator as ScoreCalibrator
from jaxcal.sklearn.score_calibrators import StructuredMatrixScaling as StructuredMatrixScaling
from jaxcal.sklearn.score_calibrators import StructuredVectorScaling as StructuredVectorScaling
from jaxcal.sklearn.score_calibrators import TemperatureScaling as TemperatureScaling
from jaxcal.sklearn.score_calibrators import VectorScaling as VectorScaling
from jaxcal.sklearn.score_calibrators import VennAbersCalibration as VennAbersCalibration

__all__ = [
    "BayesianBinning",
    "BetaCalibration",
    "Calibrator",
    "DirichletCalibration",
    "EnsembleTemperatureScaling",
    "HistogramBinning",
    "IsotonicCalibration",
    "MatrixScaling",
    "PlattScaling",
    "QuadraticScaling",
    "ScoreCalibrator",
    "StructuredMatrixScaling",
    "StructuredVectorScaling",
    "TemperatureScaling",
    "VectorScaling",
    "VennAbersCalibration",
]
