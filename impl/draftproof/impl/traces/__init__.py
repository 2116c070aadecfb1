"""Recordings of what a scheduler did, whatever the engine: written, stored, checked, shown.

`format` says what a trace is, `recorder` writes one, `checking` holds one against the proven accounting. The
package needs the extra `traces` (msgspec; pyarrow for Parquet, zstandard for .zst, fsspec for URLs).
"""
