//! A teacher's answer to "how likely is this response?", read once and strictly.
