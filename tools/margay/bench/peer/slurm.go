package peer

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// Bounds of Slurm on one host.
const (
	// mostSlurmds bounds the hosts. With 1,000 a start took a minute, and a job forty seconds.
	mostSlurmds = 256
	slurmLimit  = time.Minute // within which all daemons must be up
	slurmEnd    = 10 * time.Second
	firstPort   = 17000 // of slurmd; the network namespace is Slurm's own
)

// slurmScript starts the daemons on so many hosts, prints "up" when all of them are up or "failed",
// and ends with its input. It is PID 1 of a namespace, so Linux ends all of Slurm with it.
const slurmScript = `
begin() {
	munged --force --socket="$1/munge.socket" --key-file="$1/munge.key" --pid-file="$1/munge.pid" --seed-file="$1/munge.seed" --log-file="$1/munge.log" || return
	slurmctld || return
	i=0
	while [ "$i" -lt "$2" ]; do
		slurmd -N "n$i" || return
		i=$((i + 1))
	done
	until [ "$(sinfo --noheader --states=idle --format=%D)" = "$2" ]; do
		sleep 0.1
	done
}
if begin "$1" "$2"; then echo up; else echo failed; fi &
cat
`

// slurmConf is the configuration for a folder, hosts, ports and CPUs. Nothing of it is the host's.
const slurmConf = `ClusterName=margay
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort=16817
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=%[1]s/munge.socket
CredType=cred/munge
StateSaveLocation=%[1]s/state
SlurmctldPidFile=%[1]s/slurmctld.pid
SlurmctldLogFile=%[1]s/slurmctld.log
SlurmdSpoolDir=%[1]s/%%n
SlurmdPidFile=%[1]s/%%n.pid
SlurmdLogFile=%[1]s/%%n.log
SlurmdParameters=config_overrides
SlurmdTimeout=0
ReturnToService=2
TreeWidth=50
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
PlugStackConfig=/dev/null
NodeName=n[0-%[2]d] NodeHostName=localhost NodeAddr=127.0.0.1 Port=[%[3]d-%[4]d] CPUs=%[5]d
PartitionName=all Nodes=ALL Default=YES State=UP
`

// beginSlurm implements launcher.begin: it starts a slurmctld, a slurmd for each host, and a munged
// with a key of its own, in namespaces of their own.
func beginSlurm(ctx context.Context, dir string, h Hosts) (_ *site, err error) {
	if h.Count > mostSlurmds {
		return nil, fmt.Errorf("it has a daemon for each node, and this host starts at most %d", mostSlurmds)
	}
	if dir, err = os.MkdirTemp(dir, "slurm-"); err != nil {
		return nil, err
	}
	if err := writeSlurm(dir, h); err != nil {
		return nil, err
	}
	network, err := NewNetwork(1) // Slurm needs an address that is not of loopback
	if err != nil {
		return nil, err
	}
	enter, env := network.Enter(0), slurmEnvironment(dir)
	script := append(slices.Clone(enter), "unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", slurmScript, "sh", dir, fmt.Sprint(h.Count))
	begun := time.Now()
	daemons, err := beginDaemons(ctx, script, env)
	if err != nil {
		return nil, errors.Join(err, network.Close())
	}
	words := append(slices.Clone(enter), "srun", "--nodes", fmt.Sprint(h.Count), "--ntasks", fmt.Sprint(h.Count))
	return &site{
		job: func(ctx context.Context, program string) error {
			cmd := command(ctx, append(slices.Clone(words), program)...)
			cmd.Env = env
			_, err := run(cmd)
			return err
		},
		note: fmt.Sprintf("The daemons of Slurm on %d pretended hosts were up after %.1f s.", h.Count, time.Since(begun).Seconds()),
		end:  func() error { return errors.Join(daemons.end(), network.Close(), os.RemoveAll(dir)) },
	}, nil
}

// writeSlurm writes the configuration and a key.
func writeSlurm(dir string, h Hosts) error {
	key := make([]byte, 128)
	_, _ = rand.Read(key) // it never fails
	conf := fmt.Sprintf(slurmConf, dir, h.Count-1, firstPort, firstPort+h.Count-1, h.CPUs)
	return errors.Join(
		os.Mkdir(filepath.Join(dir, "state"), 0o700),
		os.WriteFile(filepath.Join(dir, "munge.key"), key, 0o600),
		os.WriteFile(filepath.Join(dir, "cgroup.conf"), []byte("CgroupPlugin=cgroup/v1\n"), 0o600), // not used, and needs no systemd
		os.WriteFile(filepath.Join(dir, "slurm.conf"), []byte(conf), 0o600),
	)
}

// slurmEnvironment is this process's environment without variables of another Slurm, and with those
// of the one in the folder.
func slurmEnvironment(dir string) []string {
	env := slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "SLURM") || strings.HasPrefix(v, "SRUN_") || strings.HasPrefix(v, "SINFO_")
	})
	return append(env, "SLURM_CONF="+filepath.Join(dir, "slurm.conf"))
}

// daemons are processes that end with the input of the first.
type daemons struct {
	stop   context.CancelFunc
	ended  chan error
	stderr bytes.Buffer // complete after ended
}

// beginDaemons runs a command that prints "up" when its daemons are up, and ends with its input.
// When ctx ends before that, so do the daemons.
func beginDaemons(ctx context.Context, argv, env []string) (*daemons, error) {
	d := &daemons{ended: make(chan error, 1)}
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	d.stop = stop
	cmd := command(running, argv...)
	input, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	output, printed := io.Pipe()
	cmd.Env, cmd.Stdout, cmd.Stderr = env, printed, &d.stderr
	cmd.Cancel, cmd.WaitDelay = input.Close, slurmEnd
	go func() {
		runtime.LockOSThread() // as in run
		defer runtime.UnlockOSThread()
		err := cmd.Run()
		printed.Close()
		d.ended <- err
	}()
	up := make(chan bool, 1)
	go func() {
		line, _ := bufio.NewReader(output).ReadString('\n')
		up <- line == "up\n"
		output.Close()
	}()
	limited, cancel := context.WithTimeout(ctx, slurmLimit)
	defer cancel()
	select {
	case ok := <-up:
		if ok {
			return d, nil
		}
		ended := d.end()
		lines := strings.Split(strings.TrimSpace(d.stderr.String()), "\n")
		err = errors.Join(fmt.Errorf("its daemons have not started: %s", cmp.Or(lines[len(lines)-1], "they give no reason")), ended)
	case <-limited.Done():
		err = errors.Join(fmt.Errorf("not all of its daemons were up after %v", slurmLimit), d.end())
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return nil, err
}

// end ends the daemons, and returns when they have ended.
func (d *daemons) end() error {
	d.stop()
	if err := <-d.ended; !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}
