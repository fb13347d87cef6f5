package sandbox

import (
	"time"

	"underwrite/attest"
)

// Facts are what was measured about one run. Judge turns them into a verdict.
type Facts struct {
	Refused bool      // BeforeLaunch said no
	Killed  FaultKind // what the run was ended for from outside; FaultNone if it ended by itself

	Elapsed time.Duration // of the job alone
	CPU     time.Duration // job and all descendants

	OOMKills   int64 // processes that the kernel killed at the memory limit
	MemoryPeak int64 // bytes

	ProcessDenials int64 // tasks refused at the processes limit
	ProcessPeak    int64 // tasks

	Workspace     WorkspaceUse // at the end
	WorkspacePeak int64        // bytes

	OutputBytes int64 // produced, kept or not

	Signal int // that ended the job; 0 if it exited or is not known to have ended
}

// A Verdict is why a run gets no receipt: Kind is FaultNone if nothing speaks
// against one. Measured and Limit are in the unit of the limit.
type Verdict struct {
	Kind     FaultKind
	Measured int64
	Limit    int64
}

// Judge names the cause when several limits were hit: what the kernel counted
// comes before what a run was killed for, since a job that was refused memory
// or processes may then hang until its time is up, and a limit comes before
// the signal or the full workspace that may follow from it.
func Judge(f Facts, l attest.Limits) Verdict {
	wall, cpu := time.Duration(l.WallSeconds)*time.Second, time.Duration(l.CPUSeconds)*time.Second
	switch {
	case f.Refused:
		return Verdict{Kind: FaultExpired}
	case f.OOMKills > 0:
		return Verdict{FaultMemory, max(f.MemoryPeak, l.MemoryBytes), l.MemoryBytes}
	case f.ProcessDenials > 0:
		return Verdict{FaultProcesses, f.ProcessPeak, l.Processes}
	case f.Killed == FaultCancelled:
		return Verdict{Kind: FaultCancelled}
	case f.OutputBytes > l.OutputBytes:
		return Verdict{FaultOutput, f.OutputBytes, l.OutputBytes}
	case f.CPU > cpu:
		return Verdict{FaultCPU, seconds(f.CPU), l.CPUSeconds}
	case f.Elapsed > wall || f.Killed == FaultWall:
		return Verdict{FaultWall, seconds(f.Elapsed), l.WallSeconds}
	case f.Workspace.Full:
		return Verdict{FaultWorkspace, f.WorkspacePeak, l.WorkspaceBytes}
	case f.Workspace.NoFiles:
		return Verdict{FaultFiles, f.Workspace.Files, f.Workspace.Files}
	case f.Signal != 0:
		return Verdict{FaultSignal, int64(f.Signal), 0}
	}
	return Verdict{}
}

// seconds rounds up, so that what is over a limit also reads as over it.
func seconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }
