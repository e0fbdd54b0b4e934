//go:build kubelet

package k8s_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/samuelhu324-dev/weft/internal/testenv"
)

const poll = 200 * time.Millisecond

// workload is a pod of weft as the API server has it.
type workload struct {
	Name, Image, Container string
	Ready                  bool
	Restarts               int
}

// pods lists the pods that stay.
func (p *pair) pods() (found []workload) {
	p.t.Helper()
	var list struct {
		Items []struct {
			Metadata struct {
				Name              string
				DeletionTimestamp *time.Time
			}
			Status struct {
				Conditions        []struct{ Type, Status string }
				ContainerStatuses []struct {
					Image, ContainerID string
					RestartCount       int
				}
			}
		}
	}
	text := p.kubectl("get", "pods", "--selector=app.kubernetes.io/component=worker", "--output=json")
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		p.t.Fatal(err)
	}
	for _, item := range list.Items {
		if item.Metadata.DeletionTimestamp != nil {
			continue
		}
		w := workload{Name: item.Metadata.Name}
		for _, c := range item.Status.Conditions {
			w.Ready = w.Ready || c.Type == "Ready" && c.Status == "True"
		}
		for _, s := range item.Status.ContainerStatuses {
			w.Image, w.Restarts = s.Image, s.RestartCount
			_, w.Container, _ = strings.Cut(s.ContainerID, "://")
		}
		found = append(found, w)
	}
	return found
}

func (p *pair) pod(name string) workload {
	p.t.Helper()
	pods := p.pods()
	i := slices.IndexFunc(pods, func(w workload) bool { return w.Name == name })
	if i < 0 {
		p.t.Fatalf("no pod %s in %+v", name, pods)
	}
	return pods[i]
}

func (p *pair) readyNow() (n int) {
	p.t.Helper()
	for _, w := range p.pods() {
		if w.Ready {
			n++
		}
	}
	return n
}

// ready waits until as many pods are ready, and no more.
func (p *pair) ready(n int) {
	p.t.Helper()
	p.eventually(bound, fmt.Sprintf("%d pods are ready", n), func() bool { return p.readyNow() == n })
}

// staysAt holds that as many pods are ready for d.
func (p *pair) staysAt(n int, d time.Duration) {
	p.t.Helper()
	end, tick := time.After(d), time.NewTicker(poll)
	defer tick.Stop()
	for {
		if got := p.readyNow(); got != n {
			p.t.Errorf("%d pods are ready, want %d for %v", got, n, d)
			return
		}
		select {
		case <-end:
			return
		case <-tick.C:
		}
	}
}

// leastReadyUntil returns the smallest number of ready pods until done.
func (p *pair) leastReadyUntil(done func() bool) (least int) {
	p.t.Helper()
	least = p.readyNow()
	p.eventually(bound, "the update is through", func() bool {
		least = min(least, p.readyNow())
		return done()
	})
	return least
}

// restarted waits until the kubelet has started a pod's container anew for the n-th time.
func (p *pair) restarted(pod string, n int) {
	p.t.Helper()
	p.eventually(bound, fmt.Sprintf("%s is started anew, %d in all", pod, n), func() bool { return p.pod(pod).Restarts == n })
}

func (p *pair) restarts() (n int) {
	p.t.Helper()
	for _, w := range p.pods() {
		n += w.Restarts
	}
	return n
}

// signal reaches the process of a pod from outside, as the kernel's out-of-memory killer does.
func (p *pair) signal(pod, signal string) {
	p.t.Helper()
	p.must("ctr", p.ctr("tasks", "kill", "--signal", signal, p.pod(pod).Container)...)
}

func (c *cluster) eventually(d time.Duration, what string, cond func() bool) {
	c.t.Helper()
	testenv.Within(c.t, d, cond, what)
}
