package margay

// Direct reports whether operations on windows of a rank of another node go to its node kernel by
// datagrams.
func (j *Job) Direct(rank int) bool {
	j.handling.Lock()
	defer j.handling.Unlock()
	d, wait := j.way(rank)
	return d != nil && !wait
}
