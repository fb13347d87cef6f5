package sandbox

import (
	"testing"
	"time"

	"underwrite/attest"
)

var testLimits = attest.Limits{
	WallSeconds: 10, CPUSeconds: 5, MemoryBytes: 1 << 20, Processes: 8, WorkspaceBytes: 4096, OutputBytes: 100,
}

func TestJudge(t *testing.T) {
	tests := []struct {
		name  string
		facts Facts
		want  Verdict
	}{
		{"nothing wrong", Facts{}, Verdict{}},
		{"every limit reached, none exceeded", Facts{
			Elapsed: 10 * time.Second, CPU: 5 * time.Second, MemoryPeak: 1 << 20, ProcessPeak: 8,
			WorkspacePeak: 4096, OutputBytes: 100,
		}, Verdict{}},
		{"wall by a nanosecond", Facts{Elapsed: 10*time.Second + 1}, Verdict{FaultWall, 11, 10}},
		{"killed for wall, measured just below", Facts{Killed: FaultWall, Elapsed: 10*time.Second - 1}, Verdict{FaultWall, 10, 10}},
		{"cpu by a nanosecond", Facts{CPU: 5*time.Second + 1}, Verdict{FaultCPU, 6, 5}},
		{"memory", Facts{OOMKills: 1, MemoryPeak: 1 << 20}, Verdict{FaultMemory, 1 << 20, 1 << 20}},
		{"memory, peak read a little low", Facts{OOMKills: 1, MemoryPeak: 1000}, Verdict{FaultMemory, 1 << 20, 1 << 20}},
		{"processes", Facts{ProcessDenials: 3, ProcessPeak: 8}, Verdict{FaultProcesses, 8, 8}},
		{"workspace", Facts{Workspace: WorkspaceUse{Full: true}, WorkspacePeak: 4096}, Verdict{FaultWorkspace, 4096, 4096}},
		{"files", Facts{Workspace: WorkspaceUse{NoFiles: true, Files: 7}, WorkspacePeak: 100}, Verdict{FaultFiles, 7, 7}},
		{"neither bytes nor files left", Facts{Workspace: WorkspaceUse{Full: true, NoFiles: true, Files: 7}, WorkspacePeak: 4096}, Verdict{FaultWorkspace, 4096, 4096}},
		{"output by a byte", Facts{OutputBytes: 101}, Verdict{FaultOutput, 101, 100}},
		{"signal", Facts{Signal: 11}, Verdict{FaultSignal, 11, 0}},
		{"cancelled", Facts{Killed: FaultCancelled}, Verdict{Kind: FaultCancelled}},
		{"refused", Facts{Refused: true}, Verdict{Kind: FaultExpired}},

		{"refused before anything else", Facts{Refused: true, OOMKills: 1, Killed: FaultCancelled}, Verdict{Kind: FaultExpired}},
		{"memory explains the signal", Facts{OOMKills: 1, Signal: 9}, Verdict{FaultMemory, 1 << 20, 1 << 20}},
		{"processes explain the hang", Facts{ProcessDenials: 1, ProcessPeak: 8, Killed: FaultWall, Elapsed: 11 * time.Second}, Verdict{FaultProcesses, 8, 8}},
		{"cpu explains the kill", Facts{Killed: FaultCPU, CPU: 6 * time.Second, Signal: 9}, Verdict{FaultCPU, 6, 5}},
		{"output explains the broken pipe", Facts{Killed: FaultOutput, OutputBytes: 200, Signal: 13}, Verdict{FaultOutput, 200, 100}},
		{"a full workspace explains the signal", Facts{Workspace: WorkspaceUse{Full: true}, WorkspacePeak: 4096, Signal: 7}, Verdict{FaultWorkspace, 4096, 4096}},
		{"a cancelled run is not called slow", Facts{Killed: FaultCancelled, Elapsed: 11 * time.Second}, Verdict{Kind: FaultCancelled}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := Judge(tt.facts, testLimits); got != tt.want {
				t.Errorf("Judge = %+v, want %+v", got, tt.want)
			}
		})
	}
}
