"""Node agents, one per machine or pod: each starts the ranks there, measures them, and reports how they
ended.
"""
