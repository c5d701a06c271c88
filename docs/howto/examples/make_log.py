"""Writes centre.csv, the log of docs/howto/tables.md."""

import csv
from datetime import datetime, timedelta
from random import Random

rng, rows = Random(0), []
for machine in ("m1", "m2"):
    fan, heat = 0.4, 27.0
    for minute in range(0, 3 * 1440, 10):
        action = "up" if heat > 28 else "down" if heat < 26 else "hold"
        seen, power = "" if rng.random() < 0.01 else f"{heat:.2f}", 30 + 40 * fan**3 + rng.random()
        when, cost = datetime(2024, 3, 1) + timedelta(minutes=minute), power + 20 * max(heat - 29, 0)
        rows.append([when.isoformat(" "), machine, seen, f"{fan:.2f}", f"{power:.1f}", action, f"{cost:.2f}"])
        fan = min(max(fan + {"up": 0.05, "down": -0.05, "hold": 0}[action], 0.1), 1.0)
        heat += 0.6 * rng.random() - 0.9 * (fan - 0.4) + 0.05 * (27 - heat) - 0.3
with open("centre.csv", "w", newline="") as file:
    csv.writer(file).writerows([["timestamp", "machine_id", "temperature", "fan_speed", "power", "action", "cost"], *rows])
