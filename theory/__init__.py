"""theory: exact high-dimensional limits of calibration and refinement. Nothing is public yet."""
