"""NumPy archives (`.npz`): D4RL's flat arrays or others by a mapping, and OGBench's trajectories.

* `archive`: an archive opened safely, its arrays by name, their rows a bounded number at a time;
* `columns`: flat arrays as the columns of a table, by names that this field uses; `TableSource` reads them;
* `ogbench`: OGBench's layout, with T+1 rows an episode;
* `writing`: archives written array by array in bounded memory, and the sinks of both layouts.
"""
