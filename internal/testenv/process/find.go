package process

import (
	"slices"
	"strings"

	"github.com/prometheus/procfs"
)

// Descendants lists the processes under pid, parents first. It may miss some that start
// meanwhile.
func Descendants(pid int) []int {
	children := make(map[int][]int)
	all, _ := procfs.AllProcs()
	for _, p := range all {
		if stat, err := p.Stat(); err == nil {
			children[stat.PPID] = append(children[stat.PPID], p.PID)
		}
	}
	found := slices.Clone(children[pid])
	for i := 0; i < len(found); i++ {
		found = append(found, children[found[i]]...)
	}
	return found
}

// Naming reports whether a running process has text in one of its arguments.
func Naming(text string) bool {
	all, _ := procfs.AllProcs()
	return slices.ContainsFunc(all, func(p procfs.Proc) bool {
		args, _ := p.CmdLine()
		return slices.ContainsFunc(args, func(a string) bool { return strings.Contains(a, text) })
	})
}
