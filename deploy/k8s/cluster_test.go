//go:build kubelet

package k8s_test

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/samuelhu324-dev/weft/internal/testenv/process"
)

const (
	programs = "../../bin/kubernetes"
	bridge   = "weftkube0"
	gateway  = "10.199.0.1" // this machine, as pods see it
	subnet   = "10.199.0.0/24"
	token    = "kubelet-test"
	upBound  = 3 * time.Minute
	kubepods = "kubepods" // the control group of all pods
)

// cluster is one node: etcd, the API server, controllers, the scheduler, containerd and a
// kubelet. Everything of it is in dir, but for the bridge and the control groups.
type cluster struct {
	t    *testing.T
	dir  string
	etcd string
	api  string
}

func startCluster(t *testing.T) *cluster {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("a kubelet needs root")
	}
	dir, err := os.MkdirTemp("", "weftkube") // sockets have short paths
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{t: t, dir: dir}
	t.Cleanup(c.sweep)
	c.must("ip", "link", "add", bridge, "type", "bridge")
	c.must("ip", "address", "add", gateway+"/24", "dev", bridge)
	c.must("ip", "link", "set", bridge, "up")
	c.files()
	c.startControlPlane()
	c.startNode()
	return c
}

func (c *cluster) at(name string) string { return filepath.Join(c.dir, name) }

func (c *cluster) files() {
	c.t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		c.t.Fatal(err)
	}
	accounts := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
	for _, name := range []string{"etcd", "networks", "volumeplugins"} {
		if err := os.Mkdir(c.at(name), 0o700); err != nil {
			c.t.Fatal(err)
		}
	}
	c.etcd, c.api = c.freeAddress(), c.freeAddress()
	for name, text := range map[string]string{
		"accounts.pem": string(accounts),
		"tokens":       token + ",admin,admin,system:masters\n",
		"networks/weft.conflist": `{"cniVersion": "0.4.0", "name": "weft", "plugins": [{"type": "bridge", "bridge": "` + bridge + `", "isGateway": true,
			"ipam": {"type": "host-local", "dataDir": "` + c.at("addresses") + `", "ranges": [[{"subnet": "` + subnet + `"}]]}}]}`,
		"kubeconfig": fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: test,
			clusters: [{name: test, cluster: {server: "https://%s", insecure-skip-tls-verify: true}}],
			users: [{name: admin, user: {token: %s}}], contexts: [{name: test, context: {cluster: test, user: admin, namespace: weft}}]}`, c.api, token),
		// What the kernel forbids a process without CAP_SYS_RESOURCE is not asked for:
		// a smaller oom_score_adj.
		"containerd.toml": `version = 2
root = "` + c.at("containerd") + `"
state = "` + c.at("containerd-state") + `"
[grpc]
address = "` + c.at("containerd.sock") + `"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "` + pause + `"
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "` + c.at("networks") + `"
`,
		"kubelet.yaml": `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
cgroupDriver: cgroupfs
cgroupRoot: /
enforceNodeAllocatable: []
oomScoreAdj: 0
authentication: {anonymous: {enabled: false}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
address: ` + gateway + `
port: ` + c.freePort() + `
healthzPort: 0
makeIPTablesUtilChains: false
failSwapOn: false
containerRuntimeEndpoint: unix://` + c.at("containerd.sock") + `
podLogsDir: ` + c.at("logs") + `
volumePluginDir: ` + c.at("volumeplugins") + `
localStorageCapacityIsolation: false
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: 1Mi, nodefs.available: 1Mi, imagefs.available: 1Mi}
`,
	} {
		if err := os.WriteFile(c.at(name), []byte(text), 0o600); err != nil {
			c.t.Fatal(err)
		}
	}
}

func (c *cluster) freePort() string {
	c.t.Helper()
	port, err := process.FreePort()
	if err != nil {
		c.t.Fatal(err)
	}
	return fmt.Sprint(port)
}

func (c *cluster) freeAddress() string { return "127.0.0.1:" + c.freePort() }

func (c *cluster) startControlPlane() {
	c.t.Helper()
	peers := "http://" + c.freeAddress()
	c.start("etcd", "etcd", "--data-dir="+c.at("etcd"), "--listen-client-urls=http://"+c.etcd, "--advertise-client-urls=http://"+c.etcd,
		"--listen-peer-urls="+peers, "--initial-advertise-peer-urls="+peers, "--initial-cluster=default="+peers)
	host, port, _ := strings.Cut(c.api, ":")
	c.start("kube-apiserver", c.program("kube-apiserver"), "--etcd-servers=http://"+c.etcd, "--bind-address="+host, "--secure-port="+port, "--cert-dir="+c.at("pki"),
		"--service-account-issuer=https://weft.test", "--service-account-key-file="+c.at("accounts.pem"), "--service-account-signing-key-file="+c.at("accounts.pem"),
		"--token-auth-file="+c.at("tokens"), "--authorization-mode=RBAC", "--service-cluster-ip-range=10.198.0.0/24")
	c.eventually(upBound, "the API server is ready", func() bool { _, err := c.try("get", "--raw", "/readyz"); return err == nil })
	c.start("kube-controller-manager", c.program("kube-controller-manager"), "--kubeconfig="+c.at("kubeconfig"), "--leader-elect=false", "--secure-port=0",
		"--service-account-private-key-file="+c.at("accounts.pem"))
	c.start("kube-scheduler", c.program("kube-scheduler"), "--kubeconfig="+c.at("kubeconfig"), "--leader-elect=false", "--secure-port=0")
}

func (c *cluster) startNode() {
	c.t.Helper()
	containerd := c.start("containerd", "containerd", "--config="+c.at("containerd.toml"))
	c.eventually(upBound, "containerd answers", func() bool { _, err := c.command("ctr", c.ctr("version")...); return err == nil })
	kubelet := c.start("kubelet", c.program("kubelet"), "--config="+c.at("kubelet.yaml"), "--kubeconfig="+c.at("kubeconfig"), "--root-dir="+c.at("kubelet"),
		"--cert-dir="+c.at("kubelet-pki"), "--hostname-override=node", "--node-ip="+gateway)
	c.t.Cleanup(func() { // containers outlive both of them
		kubelet.Stop(process.Step{Signal: syscall.SIGTERM, Wait: 10 * time.Second})
		c.removeContainers()
		containerd.Stop(process.Step{Signal: syscall.SIGTERM, Wait: 10 * time.Second})
	})
	c.eventually(upBound, "the kubelet makes its node", func() bool {
		if kubelet.HasEnded() {
			c.t.Fatal(kubelet.EndedError())
		}
		_, err := c.try("get", "node/node")
		return err == nil
	})
	c.kubectl("wait", "--for=condition=Ready", "--timeout=2m", "node/node")
}

func (c *cluster) program(name string) string {
	c.t.Helper()
	path, err := filepath.Abs(filepath.Join(programs, name))
	if err != nil {
		c.t.Fatal(err)
	}
	return path
}

// start runs a program until the test ends, or the test process.
func (c *cluster) start(name string, argv ...string) *process.Process {
	c.t.Helper()
	p, err := process.Start(process.Server{Name: name, Dir: c.dir, Log: c.at(name + ".log"), Argv: argv, DeathSignal: syscall.SIGKILL})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		if p.HasEnded() && !p.Expected() {
			c.t.Error(p.EndedError())
		}
		p.Stop(process.Step{Signal: syscall.SIGTERM, Wait: 10 * time.Second})
		if c.t.Failed() {
			c.t.Logf("%s: %s", name, p.Tail())
		}
	})
	return p
}

func (c *cluster) command(name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.t.Context()), 5*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

func (c *cluster) must(name string, args ...string) string {
	c.t.Helper()
	out, err := c.command(name, args...)
	if err != nil {
		c.t.Fatalf("%s %s: %v\n%s", filepath.Base(name), strings.Join(args, " "), err, out)
	}
	return out
}

func (c *cluster) try(args ...string) (string, error) {
	return c.command(filepath.Join(programs, "kubectl"), append([]string{"--kubeconfig=" + c.at("kubeconfig")}, args...)...)
}

func (c *cluster) kubectl(args ...string) string {
	c.t.Helper()
	return c.must(filepath.Join(programs, "kubectl"), append([]string{"--kubeconfig=" + c.at("kubeconfig")}, args...)...)
}

// ctr completes arguments for containerd's own client.
func (c *cluster) ctr(args ...string) []string {
	return append([]string{"--address=" + c.at("containerd.sock"), "--namespace=k8s.io"}, args...)
}

func (c *cluster) removeContainers() {
	for _, what := range [][]string{{"tasks", "rm", "--force"}, {"containers", "rm"}} {
		ids, _ := c.command("ctr", c.ctr(what[0], "ls", "--quiet")...)
		for _, id := range strings.Fields(ids) {
			_, _ = c.command("ctr", c.ctr(append(slices.Clone(what), id)...)...) // it may be about to end
		}
	}
}

// sweep removes what outlives processes: mounts, control groups, and the bridge.
func (c *cluster) sweep() {
	mounts, err := os.Open("/proc/self/mounts")
	if err != nil {
		c.t.Error(err)
		return
	}
	defer mounts.Close()
	var below []string
	for lines := bufio.NewScanner(mounts); lines.Scan(); {
		if f := strings.Fields(lines.Text()); strings.HasPrefix(f[1], c.dir+"/") {
			below = append(below, f[1])
		}
	}
	for _, path := range slices.Backward(below) {
		_ = syscall.Unmount(path, syscall.MNT_DETACH)
	}
	if err := os.RemoveAll(c.dir); err != nil {
		c.t.Error(err)
	}
	groups, _ := c.command("find", "/sys/fs/cgroup", "-depth", "-type", "d", "-path", "*/"+kubepods+"*")
	for _, dir := range strings.Fields(groups) {
		_ = syscall.Rmdir(dir)
	}
	c.must("ip", "link", "delete", bridge)
}
