package hosts

import (
	"fmt"
	"os"
)

// Allocation is the hosts that a batch system has given to this process.
type Allocation struct {
	Name     string // for people
	Hosts    []string
	Launcher Launcher // reaches them
	Ends     bool     // what the launcher starts ends with the allocation
}

// Surroundings are what an allocation shows itself by.
type Surroundings struct {
	Getenv   func(name string) string
	ReadFile func(path string) ([]byte, error)
}

// Process is the surroundings of this process.
var Process = Surroundings{os.Getenv, os.ReadFile}

// srun runs one task on a host of the allocation, beside others, on all CPUs that the allocation
// has there.
var srun = Launcher{"srun", "--quiet", "--nodes=1", "--ntasks=1", "--overlap", "--cpu-bind=none", "--mpi=none", "--nodelist"}

// Allocation finds the allocation of this process; nil: there is none. Of PBS only the list of
// hosts is used: its own remote shell passes no standard input.
func (s Surroundings) Allocation() (*Allocation, error) {
	if job, list := s.Getenv("SLURM_JOB_ID"), s.Getenv("SLURM_JOB_NODELIST"); job != "" && list != "" {
		hosts, err := Parse(list)
		if err != nil {
			return nil, fmt.Errorf("the hosts of Slurm's job %s (SLURM_JOB_NODELIST): %w", job, err)
		}
		return &Allocation{Name: "Slurm's job " + job, Hosts: hosts, Launcher: srun, Ends: true}, nil
	}
	path := s.Getenv("PBS_NODEFILE")
	if path == "" {
		return nil, nil
	}
	text, err := s.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("the hosts of the PBS job (PBS_NODEFILE): %w", err)
	}
	hosts, err := ParseFile(string(text))
	if err != nil {
		return nil, fmt.Errorf("the hosts of the PBS job (%s): %w", path, err)
	}
	return &Allocation{Name: "PBS job " + s.Getenv("PBS_JOBID"), Hosts: hosts, Launcher: SSH}, nil
}
