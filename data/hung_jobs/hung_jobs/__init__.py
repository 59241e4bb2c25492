"""Generates hung training jobs: flight-recorder dumps of all ranks plus the right answer.

Every job is simulated. A rank has a program (the collectives, sends and receives of a training
step). Its CPU enqueues calls and runs ahead of the device until a host synchronisation; its device
executes the calls of each communicator in order on one stream, and the compute stream orders the
streams of different communicators. A collective completes when all members have started it; a send
completes when the matching receive has started (rendezvous protocol), or at once below the eager
limit. A fault edits one rank's program. The simulation runs until nothing moves, then the watchdog
of the first rank times out and all ranks write their dumps. So the dumps follow from the fault.

The modules, from the bottom up:

  events      moments of simulated time, and what each waits for
  program     what a rank executes: instructions on process groups
  frames      the stacks of the calls
  meshes      the ranks of a job and their groups
  steps       the fault-free program of every rank: setup, training steps, evaluation
  simulation  runs the programs of all ranks until nothing moves
  faults      the kinds of faults: edits of programs; `visible` tells whether the dumps show one
  dumps       what the ranks write, in torch's forms
  files       which ranks have a dump, in which form and under which name
  options     the random properties of a job
  answers     answer.json
  jobs        draws, simulates and writes one job, many jobs or one large job
  self_check  reads jobs back and looks for contradictions
"""
