"""x"""
import re
from offline_cli.errors import BadMapping
from offline_cli.formats.tables.mapping import DEFAULT, mapping_of, preset_text
def looks_like_ids(column): return bool(re.search(r"(^|_)(eps?|episode|traj(ectory)?|ride|run|session|rollout|demo)(_?(id|index|no|number|nr))?$", column.lower()))
def default_mapping(source):
    return mapping_of(preset_text(DEFAULT), DEFAULT)
