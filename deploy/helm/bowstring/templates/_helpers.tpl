{{- define "bowstring.name" -}}
{{- if contains "bowstring" .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-bowstring{{ end }}
{{- end }}

{{- define "bowstring.selector" -}}
app.kubernetes.io/name: bowstring
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "bowstring.labels" -}}
{{ include "bowstring.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "bowstring.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default (printf "v%s" .Chart.AppVersion) }}
{{- end }}

{{- define "bowstring.scheme" -}}
{{ ternary "grpc+tls" "grpc" (ne .Values.tlsSecret "") }}
{{- end }}

{{- /* The server's file. Text, since toToml would make a float of each number. */ -}}
{{- define "bowstring.config" -}}
{{- if not (contains "[datasets." .Values.config) }}{{ fail "config names no dataset: give at least [datasets.NAME] with a url" }}{{ end }}
{{- if not (or .Values.insecure (and .Values.secret .Values.tlsSecret)) }}{{ fail "give secret (tokens, tickets.key) and tlsSecret, or insecure=true on a trusted network" }}{{ end }}
{{- if and .Values.warm (not .Values.cache.size) }}{{ fail "warm fills the volume of cache.size: give it a size" }}{{ end }}
{{- $name := include "bowstring.name" . }}
{{- $scheme := include "bowstring.scheme" . -}}
[server]
listen = "0.0.0.0:8815"
admin = "0.0.0.0:9090"
shared_memory = false
drain_grace = {{ .Values.drainGrace }}
replicas = [
{{- range $number := until (int .Values.replicas) }}
    "{{ $scheme }}://{{ $name }}-{{ $number }}.{{ $name }}.{{ $.Release.Namespace }}.svc:8815",
{{- end }}
]
{{- if .Values.secret }}
tokens = "/etc/bowstring/secret/tokens"
key_file = "/etc/bowstring/secret/tickets.key"
{{- end }}
{{- if .Values.tlsSecret }}
tls = { cert = "/etc/bowstring/tls/tls.crt", key = "/etc/bowstring/tls/tls.key" }
{{- end }}
{{- if .Values.adminSecret }}
admin_tokens = "/etc/bowstring/admin/tokens"
{{- end }}
{{- if .Values.insecure }}
insecure = true
{{- end }}
{{ .Values.config }}
{{- end }}
