"""`.book` files, a made-up format: text, a header line, then episodes of one line a step.

LOGBOOK 1 obs=2 actions=3
episode a
0.5 1.0 > 2 > 1.0
end terminated 1.5 1.0
"""
