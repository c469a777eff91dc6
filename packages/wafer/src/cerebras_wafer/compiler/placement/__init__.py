"""Placement: the pipelined mode, in which every stage of the model has a rectangle of PEs of its own.

stages     group the kernel graph into stages (work.py: their cycles)
size       how many PEs each stage gets, and the rate that follows
floorplan  a rectangle for each stage
routes     the way between the rectangles, in hops and colours
inputs     what comes from the hosts
check      what must hold of every placement
place      all of it in order
plan       the plan that it becomes
"""
