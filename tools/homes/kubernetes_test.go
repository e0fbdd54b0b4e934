package homes

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
	request "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	_ "k8s.io/kubernetes/pkg/apis/apps/install"
	_ "k8s.io/kubernetes/pkg/apis/batch/install"
	"k8s.io/kubernetes/pkg/apis/core"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	_ "k8s.io/kubernetes/pkg/apis/policy/install"
	"k8s.io/kubernetes/pkg/registry/apps/deployment"
	"k8s.io/kubernetes/pkg/registry/batch/job"
	"k8s.io/kubernetes/pkg/registry/core/configmap"
	"k8s.io/kubernetes/pkg/registry/core/secret"
	"k8s.io/kubernetes/pkg/registry/core/service"
	"k8s.io/kubernetes/pkg/registry/core/serviceaccount"
	"k8s.io/kubernetes/pkg/registry/policy/poddisruptionbudget"
	podsecurity "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

const (
	deploy    = "../../deploy"
	namespace = "weft"
)

// strategies are what the API server does when somebody creates an object of a kind.
func strategies() map[string]rest.RESTCreateStrategy {
	return map[string]rest.RESTCreateStrategy{
		"ConfigMap": configmap.Strategy, "Deployment": deployment.Strategy, "Job": job.Strategy, "PodDisruptionBudget": poddisruptionbudget.Strategy,
		"Secret": secret.Strategy, "Service": service.Strategy, "ServiceAccount": serviceaccount.Strategy,
	}
}

// warnings fails the test for what the API server would tell the user.
type warnings struct{ t *testing.T }

func (w warnings) AddWarning(_, text string) { w.t.Errorf("the API server warns: %s", text) }

// create returns what the API server would make of an object, in the version it came in.
func create(t *testing.T, text []byte) (runtime.Object, error) {
	t.Helper()
	codecs := serializer.NewCodecFactory(legacyscheme.Scheme, serializer.EnableStrict)
	given, kind, err := codecs.UniversalDeserializer().Decode(text, nil, nil)
	if err != nil {
		return nil, err
	}
	obj, _, err := codecs.UniversalDecoder().Decode(text, nil, nil)
	if err != nil {
		return nil, err
	}
	strategy, ok := strategies()[kind.Kind]
	if !ok {
		t.Fatalf("no strategy for %s: add the one of the API server", kind)
	}
	meta, ok := obj.(metav1.Object)
	if !ok {
		t.Fatalf("%s has no metadata", kind)
	}
	if s, ok := obj.(*core.Service); ok && len(s.Spec.ClusterIPs) == 0 {
		s.Spec.ClusterIPs = []string{s.Spec.ClusterIP} // as its storage does before it looks
	}
	rest.FillObjectMetaSystemFields(meta)
	ctx := warning.WithWarningRecorder(request.WithNamespace(context.WithoutCancel(t.Context()), namespace), warnings{t})
	ctx = request.WithRequestInfo(ctx, &request.RequestInfo{APIGroup: kind.Group, APIVersion: kind.Version})
	legacyscheme.Scheme.Default(given)
	return given, rest.BeforeCreate(strategy, ctx, obj)
}

// split returns the documents of a YAML file.
func split(t *testing.T, text string) (docs [][]byte) {
	t.Helper()
	r := yaml.NewYAMLReader(bufio.NewReader(strings.NewReader(text)))
	for {
		doc, err := r.Read()
		if errors.Is(err, io.EOF) {
			return docs
		}
		if err != nil {
			t.Fatal(err)
		}
		docs = append(docs, doc)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(deploy, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// built is what `kubectl apply -k deploy/k8s` sends.
func built(t *testing.T) string {
	t.Helper()
	all, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), filepath.Join(deploy, "k8s"))
	if err != nil {
		t.Fatal(err)
	}
	text, err := all.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func manifest(t *testing.T, name string) string {
	t.Helper()
	if name == "kustomization" {
		return built(t)
	}
	return read(t, name)
}

func TestObjectsAreTaken(t *testing.T) {
	t.Parallel()
	want := map[string]int{"kustomization": 5, "k8s/migrate.yaml": 1, "k8s/secret.example.yaml": 2}
	for name, n := range want {
		t.Run(filepath.Base(name), func(t *testing.T) {
			t.Parallel()
			docs := split(t, manifest(t, name))
			if len(docs) != n {
				t.Errorf("got %d objects, want %d", len(docs), n)
			}
			for _, doc := range docs {
				if _, err := create(t, doc); err != nil {
					t.Errorf("%v\n%s", err, doc)
				}
			}
		})
	}
}

// TestBadObjectsAreRefused holds that the check above sees something.
func TestBadObjectsAreRefused(t *testing.T) {
	t.Parallel()
	good := read(t, "k8s/deployment.yaml")
	for name, c := range map[string]struct{ old, with, want string }{
		"UnknownField":   {"replicas: 2", "replica: 2", `unknown field "spec.replica"`},
		"WrongType":      {"replicas: 2", "replicas: two", "json"},
		"TwoOfOne":       {"  replicas: 2\n", "  replicas: 2\n  replicas: 3\n", "already set"},
		"NoSuchPort":     {"{name: http, containerPort: 9108}", "{name: http, containerPort: 910800}", "must be between 1 and 65535"},
		"OtherSelector":  {"matchLabels: {app.kubernetes.io/name: weft, app.kubernetes.io/component: worker}\n  #", "matchLabels: {app: other}\n  #", "does not match template"},
		"NothingMoves":   {"{maxSurge: 1, maxUnavailable: 0}", "{maxSurge: 0, maxUnavailable: 0}", "may not be 0"},
		"NoSuchVolume":   {"- {name: config, mountPath", "- {name: settings, mountPath", `Not found: "settings"`},
		"RootAfterAll":   {"allowPrivilegeEscalation: false", "allowPrivilegeEscalation: false\n            privileged: sometimes", "json"},
		"ProbeWithoutBy": {"httpGet: {path: /health/live, port: http}", "initialDelaySeconds: 1", "must specify a handler type"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if strings.Count(good, c.old) == 0 {
				t.Fatalf("deployment.yaml has no %q", c.old)
			}
			_, err := create(t, []byte(strings.Replace(good, c.old, c.with, 1)))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q in it", err, c.want)
			}
		})
	}
}

// TestPodsAreRestricted holds that both pods may run in a namespace with
// pod-security.kubernetes.io/enforce: restricted.
func TestPodsAreRestricted(t *testing.T) {
	t.Parallel()
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	level := podsecurity.LevelVersion{Level: podsecurity.LevelRestricted, Version: podsecurity.LatestVersion()}
	for name, template := range templates(t) {
		got := policy.AggregateCheckResults(evaluator.EvaluatePod(level, &template.ObjectMeta, &template.Spec))
		if !got.Allowed {
			t.Errorf("%s: %s", name, got.ForbiddenDetail())
		}
		for _, c := range containers(template.Spec) {
			if s := c.SecurityContext; s == nil || s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem {
				t.Errorf("%s: %s may write to its root", name, c.Name)
			}
			if c.Resources.Limits.Memory().IsZero() || c.Resources.Requests.Memory().IsZero() || c.Resources.Requests.Cpu().IsZero() {
				t.Errorf("%s: %s says not what it needs", name, c.Name)
			}
		}
		if mount := template.Spec.AutomountServiceAccountToken; mount == nil || *mount {
			t.Errorf("%s has a token for the API", name)
		}
	}
	template := templates(t)["Deployment"]
	template.Spec.Containers[0].SecurityContext.Capabilities = nil
	if policy.AggregateCheckResults(evaluator.EvaluatePod(level, &template.ObjectMeta, &template.Spec)).Allowed {
		t.Error("a container with capabilities is allowed: the check sees nothing")
	}
}

func containers(s corev1.PodSpec) []corev1.Container {
	return append(append([]corev1.Container{}, s.InitContainers...), s.Containers...)
}
